"""The shop of `bench.jobs`: functions that a hub serves as tools. The data are the same in every run."""

from __future__ import annotations

from typing import TypedDict


class Customer(TypedDict):
    id: int
    name: str
    city: str


class Order(TypedDict):
    id: int
    item: str
    cents: int
    is_paid: bool
    note: str


_CITIES = ("Bergen", "Porto", "Graz", "Turku")
_ITEMS = ("lamp", "desk", "chair", "shelf", "rug")
_NOTE = "Delivered to the back door, as agreed on the phone; the parcel was left with a neighbour. "
_refunded: set[int] = set()


def list_customers(city: str = "") -> list[Customer]:
    """List the customers of the shop, all or those of one city."""
    everyone: list[Customer] = [
        {"id": number, "name": f"Customer {number}", "city": _CITIES[number % 4]} for number in range(1, 25)
    ]
    return [each for each in everyone if not city or each["city"] == city]


def list_orders(customer: int) -> list[Order]:
    """List the orders of a customer, with what was paid."""
    return [_order(100 * customer + number) for number in range(1, 7)]


def refund_order(order: int) -> Order:
    """Refund an order: give the customer the money back."""
    _refunded.add(order)
    return _order(order)


def convert_price(cents: int, currency: str) -> int:
    """Convert a price in euro cents into another currency: USD, GBP or NOK."""
    return round(cents * {"USD": 1.1, "GBP": 0.85, "NOK": 11.5}[currency])


def _order(id: int) -> Order:
    return {
        "id": id,
        "item": _ITEMS[id % 5],
        "cents": 0 if id in _refunded else 500 + id * 37 % 4000,
        "is_paid": id % 3 != 0,
        "note": _NOTE * 3,
    }

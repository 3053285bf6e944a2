"""Tells the weather, which it makes up; it has a tool that the translator has, too."""

from small_server import serve

SKY = {"Paris": "rain", "Cairo": "sun", "Oslo": "snow"}


def weather(city: str) -> str:
    """Say what the sky is like."""
    return f"{city}: {SKY[city]}"


def forecast(city: str, days: int) -> str:
    """Say what it will be like."""
    return f"{city}: {', '.join([SKY[city]] * days)}"


def languages() -> str:
    """Say in which languages forecasts are read."""
    return "en"


if __name__ == "__main__":
    serve(
        "weather",
        {
            "weather": (weather, "The weather in a city now.", {"city": "string"}),
            "forecast": (forecast, "The weather in the next days.", {"city": "string", "days": "integer"}),
            "languages": (languages, "The languages in which forecasts are read.", {}),
        },
    )

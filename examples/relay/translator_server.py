"""Translates a handful of words."""

from small_server import serve

WORDS = {"rain": "雨", "sun": "晴", "snow": "雪"}


def translate(text: str) -> str:
    """Put the words that it knows into Chinese."""
    return " ".join(WORDS.get(word, word) for word in text.split())


def detect_language(text: str) -> str:
    """Guess the language by its letters."""
    return "zh" if any("\u4e00" <= letter <= "\u9fff" for letter in text) else "en"


def languages() -> str:
    """Say what it can translate from and to."""
    return "en, zh"


if __name__ == "__main__":
    serve(
        "translator",
        {
            "translate": (translate, "Translate into Chinese.", {"text": "string"}),
            "detect_language": (detect_language, "Guess a text's language.", {"text": "string"}),
            "languages": (languages, "The languages that it knows.", {}),
        },
    )

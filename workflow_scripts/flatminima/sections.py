"""A section of the configuration: closed, strict, and refused in words that name the key.

``flatminima.config`` makes one line of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from flatminima.errors import suggest

Mistakes = Iterator[tuple[str, str]]  # key below the section, and what is wrong with it
DECIDING = ("source", "kind")  # keys that say which of several classes a section is


def key(description: str, default: Any = ..., **limits: Any) -> Any:
    """A key of the configuration; one without a default is needed.

    A default of ``None`` says that the key may be left out, not that it may be null.
    """
    return Field(default, description=description, **limits)


def _mistake(place: str, text: str) -> PydanticCustomError:
    # Given as a value of the context, since text may have braces.
    return PydanticCustomError("mistake", "{text}", {"key": place, "text": text})


class Section(BaseModel):
    """A mapping of the configuration. Numbers are not converted: 2.0 is no whole number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def _mistakes(self) -> Mistakes:
        """Keys that do not go with each other."""
        yield from ()

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """First of all, since a key that is not known explains what is missing."""
        for name in given if isinstance(given, Mapping) else ():
            if name not in cls.model_fields:
                raise _mistake(str(name), cls._unknown(name, given))
        return given

    @model_validator(mode="after")
    def _without_mistakes(self) -> Self:
        for place, text in self._mistakes():
            raise _mistake(place, text)
        return self

    @classmethod
    def _unknown(cls, name: Any, given: Mapping) -> str:
        if not isinstance(name, str):
            return f"is not text: {name!r}"
        for deciding in DECIDING:
            kinds = [
                other.model_fields[deciding].annotation.__args__[0]
                for other in cls._alternatives()
                if name in other.model_fields and deciding in other.model_fields
            ]
            if kinds and deciding in cls.model_fields:
                own = given.get(deciding)
                return f"goes with {deciding} {' or '.join(kinds)}; {deciding} is {own}"
        return f"is not known; {suggest(name, sorted(cls.model_fields))}"

    @classmethod
    def _alternatives(cls) -> Iterator[type["Section"]]:
        """Classes without subclasses that descend from the same child of ``Section``."""

        def leaves(parent: type[Section]) -> Iterator[type[Section]]:
            for child in parent.__subclasses__():
                yield from leaves(child)
            if not parent.__subclasses__():
                yield parent

        yield from leaves(cls.__mro__[cls.__mro__.index(Section) - 1])

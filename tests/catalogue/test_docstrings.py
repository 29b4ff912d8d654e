"""Options that several classes share are documented once."""

from __future__ import annotations

from dataclasses import dataclass

from sightline.catalogue.docstrings import documentation


@dataclass(frozen=True)
class Base:
    """A base.

    Attributes:
        layer: where it looks,
            or where else.
        kind: of the base.
        fusion: how layers
            become one.
    """

    layer: int = 0
    kind: str = ""
    fusion: str = "mean"


@dataclass(frozen=True)
class Own(Base):
    """A subclass.

    Prose.

    Attributes:
        kind: of the subclass.
        more: its own.

    Examples:
        None.
    """

    kind: str = "a"
    more: int = 1


@dataclass(frozen=True)
class Silent(Base):
    """A subclass that says nothing of its options."""


@dataclass(frozen=True)
class Complete:
    """No base.

    Attributes:
        b: second.
        a: first.
    """

    a: int = 0
    b: int = 0


def test_a_subclass_lists_what_its_base_documents_in_the_order_of_the_fields() -> None:
    assert documentation(Own) == (
        "A subclass.\n\nProse.\n\n"
        "Attributes:\n"
        "    layer: where it looks,\n        or where else.\n"
        "    kind: of the subclass.\n"
        "    fusion: how layers\n        become one.\n"
        "    more: its own.\n\n"
        "Examples:\n    None."
    )


def test_a_subclass_without_attributes_gets_the_section() -> None:
    summary, _, section = documentation(Silent).partition("\n\n")
    assert summary == "A subclass that says nothing of its options."
    assert section.splitlines()[0] == "Attributes:"
    assert "    kind: of the base." in section.splitlines()


def test_what_is_no_option_of_the_class_is_not_inherited() -> None:
    @dataclass(frozen=True)
    class Other:
        """Another.

        Attributes:
            hidden: state.
        """

        @property
        def hidden(self) -> int:
            return 1

    @dataclass(frozen=True)
    class Child(Other):
        """A child."""

        seed: int = 0

    assert documentation(Child) == "A child."


def test_a_complete_docstring_stays_as_it_is_written() -> None:
    assert documentation(Complete) == "No base.\n\nAttributes:\n    b: second.\n    a: first."

import pytest

from sightline.catalogue.aliases import ALIASES, AMBIGUOUS
from sightline.catalogue.cards import card
from sightline.catalogue.index import find
from sightline.errors import RecipeError
from sightline.recipe import parse, text
from sightline.registry import METHODS, METRICS, OPERATORS


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_another_name_of_something_registered(alias, name):
    assert alias not in METHODS
    assert alias not in OPERATORS
    assert alias not in METRICS
    assert parse(alias) == parse(name)
    assert text(parse(alias)) == name
    assert find(alias) is find(name)
    assert card(alias).name == name


def test_an_alias_takes_options_and_nests():
    assert text(parse("smooth(integrated_gradients(steps=5), samples=3)")) == "smooth(ig(steps=5), samples=3)"


@pytest.mark.parametrize(("word", "meant"), AMBIGUOUS.items())
def test_a_word_that_may_mean_several_methods_names_them(word, meant):
    with pytest.raises(RecipeError, match=rf"there is no method called '{word}'; did you mean ") as caught:
        parse(word)
    for recipe in meant:
        assert recipe in str(caught.value)
        parse(recipe)
    for look in (card, find):
        with pytest.raises(RecipeError) as other:
            look(word)
        assert str(other.value) == str(caught.value)

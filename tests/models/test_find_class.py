"""Classes by number, label or synonym."""

import pytest

from sightline.errors import TargetError
from sightline.models import adapt
from sightline.models.targets import find_class


def named(*labels):
    return adapt(lambda images: images, labels=labels, name="zoo")


def test_a_class_answers_to_its_number_its_label_and_its_synonyms():
    model = named("tabby, tabby cat", "Egyptian cat")
    assert [
        find_class(model, wanted) for wanted in ("1", "Tabby", "tabby cat", " EGYPTIAN CAT", "tabby, tabby cat")
    ] == [1, 0, 0, 1, 0]


def test_an_exact_label_is_preferred_to_another_classs_synonym():
    assert find_class(named("crane, bird", "crane"), "crane") == 1


@pytest.mark.parametrize(
    ("wanted", "said"), [("2", "0 to 1"), ("egyptian", "did you mean 'egyptian cat'?"), ("zebra", "begin with")]
)
def test_an_unknown_class_is_refused_with_a_hint(wanted, said):
    with pytest.raises(TargetError, match=said):
        find_class(named("tabby, tabby cat", "Egyptian cat"), wanted)


def test_a_model_without_labels_asks_for_a_number():
    with pytest.raises(TargetError, match="give a number"):
        find_class(adapt(lambda images: images, name="zoo"), "cat")

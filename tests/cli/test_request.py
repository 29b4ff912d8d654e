"""Files that a command writes: all of them, or none."""

import pytest
from PIL import Image

from sightline.cli.request import staged_output
from sightline.errors import OutputError
from sightline.files import file_name


def test_files_arrive_when_the_block_ends_well(opened, tmp_path):
    with staged_output(tmp_path / "a" / "b") as output:
        promised = output.png("x/one.png", Image.new("RGB", (2, 2)), {"recipe": "ü"})
        assert not promised.exists()
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [promised]
    assert opened(promised).info["recipe"] == "ü"


def test_nothing_arrives_when_it_does_not(tmp_path):
    (tmp_path / "a").mkdir()

    def interrupted():
        with staged_output(tmp_path / "a" / "b" / "c") as output:
            output.png("one.png", Image.new("RGB", (2, 2)), {})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert list((tmp_path / "a").rglob("*")) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="it is a file, or lies in one"), staged_output(tmp_path / "file"):
        pass


def test_names_are_safe_on_every_system():
    assert file_name("skip_plus(ixg, start=3)") == "skip_plus-ixg-start=3"
    assert file_name("../../etc/passwd") == "etc-passwd"
    assert len(file_name("x" * 300)) == 80


def test_no_two_images_share_a_folder(tmp_path):
    with staged_output(tmp_path / "out") as output:
        assert [output.subfolder(name) for name in ("cat", "Cat", "cat", "index.html", "...")] == [
            "cat",
            "Cat-2",
            "cat-3",
            "index.html-2",
            "image",
        ]

"""The pip configuration that a build of the image is given."""

from pathlib import Path

from tests.e2e.image.pip_here import configured, folders


def test_a_variable_beats_a_file_and_what_is_not_about_indexes_stays_here() -> None:
    listed = (
        ":env:.find-links='/from/environment'\n"
        ":env:.cert='/etc/ca.crt'\n"
        "global.extra-index-url='file:///a/simple file:///b/simple'\n"
        "global.find-links='/from/file'\n"
        "wheel.find-links='/other'\n"
    )
    assert configured(listed) == {
        "find-links": ["/from/environment"],
        "extra-index-url": ["file:///a/simple", "file:///b/simple"],
    }


def test_no_configuration_is_an_empty_one() -> None:
    assert configured("") == {}
    assert folders({}) == []


def test_folders_that_are_there_are_named_once_with_the_files_that_an_index_links_to(
    tmp_path: Path,
) -> None:
    for name in ("wheels", "wheels/more", "index/simple"):
        (tmp_path / name).mkdir(parents=True)
    found = folders(
        {
            "find-links": [f"{tmp_path}/wheels", f"{tmp_path}/wheels/more", f"{tmp_path}/gone"],
            "extra-index-url": [
                f"file://{tmp_path}/index/simple",
                "https://example.invalid/simple",
            ],
            "default-timeout": ["15"],
        }
    )
    assert found == [tmp_path / "index", tmp_path / "wheels"]

"""The dataset card: what its header says of samples."""

from typing import Any

import yaml

from curator.stages.shard.dataset_card import dataset_card


def features(*, with_embedding: bool = False, with_id: bool = False) -> dict[str, Any]:
    """Declared members by name."""
    card = dataset_card(
        {"train": ["a/train-000000-0.tar"], "val": []},
        with_embedding=with_embedding,
        with_id=with_id,
    )
    start, header, _ = card.decode().split("---\n")
    assert start == ""
    declared = yaml.safe_load(header)["dataset_info"]["features"]
    return {feature["name"]: feature for feature in declared}


def test_members_are_those_that_samples_have() -> None:
    """Pins that a member which is not there is not declared: it would be null in each row."""
    plain = ["mp4", "txt", "json", "__key__", "__url__"]
    assert sorted(features()) == sorted(plain)
    assert sorted(features(with_embedding=True)) == sorted([*plain, "npy"])
    assert sorted(features(with_id=True)) == sorted([*plain, "id"])
    assert features()["mp4"]["dtype"] == "video"


def test_a_split_without_tars_is_not_named() -> None:
    """Pins that no pattern without files is written, which loaders refuse."""
    card = dataset_card({"train": ["x.tar"], "val": []}, with_embedding=False, with_id=False)
    (config,) = yaml.safe_load(card.decode().split("---\n")[1])["configs"]
    assert config["data_files"] == [{"split": "train", "path": ["x.tar"]}]

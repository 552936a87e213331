"""The house keeps its shape: layers, one form for all stages, one place for Ray, unique names."""

import ast
import gc
from collections import Counter
from functools import cache
from pathlib import Path

import curator
from curator.stages import OPTIONAL

ROOT = Path(curator.__file__).parent
LAYERS = (
    (
        "errors",
        "field_docs",
        "frame_size",
        "strict_yaml",
        "frame_rate",
        "installation",
        "json_bounds",
        "fingerprints",
        "number_text",
        "packing",
        "buckets",
        "records",
        "value_errors",
    ),
    ("storage", "media"),
    ("extensions", "family", "frame_axes", "stage", "value_contents", "value_header"),
    ("models",),
    ("matching",),
    ("vectors",),
    ("measures",),
    ("cut_requests", "rights_config", "run_config", "trainers"),
    ("tables",),
    ("executor",),
    ("annotator_worker", "sample_frames"),
    ("scheduler",),
    ("dataset",),
    ("stages",),
    ("recipe", "recipe_models"),
    ("tools.report",),
    ("pipeline", "tools.verify"),
    ("export",),
    ("runs", "tools.removal", "tools.telemetry"),
    (
        "loading",
        "tools.doctor",
        "tools.footage",
        "tools.planning",
        "tools.proof",
        "tools.retrieval",
        "tools.review",
    ),
    ("tools.view",),
    ("api",),
    ("tools.commands",),
    ("cli",),
)
"""A module imports from its own layer and those above this line of the list, never from below."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(p for p in ROOT.rglob("*.py") if "pipelines" not in p.parts)
STAGES = (
    "scan", "analyze", "propose", "filter", "dedup", *OPTIONAL, "select", "cameras", "caption",
    "cut", "shard", "commit",
)  # fmt: skip
STAGE_CONTRACTS = {
    "GraphStage", "Stage", "Annotator", "CorpusStage", "ClipFilter", "ItemStage",
    "PixelStage",
}  # fmt: skip
KNOWS_RAY = {
    Path("executor/ray_backend.py"),
    Path("executor/ray_cluster.py"),
    Path("executor/ray_reach.py"),
    Path("loading/ray_decoding.py"),
}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file: every test walks the same ones."""
    gc.disable()
    found = list(ast.walk(ast.parse(path.read_text())))
    # A million nodes stay: each collection would walk them in vain.
    gc.freeze()
    gc.enable()
    return found


@cache
def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer_of(module: str) -> int:
    """Number of the layer of a module under `curator`, such as `tools.view.view_server`."""
    first, *rest = module.split(".")
    return LEVEL[f"{first}.{rest[0]}" if first == "tools" and rest else first]


def inner_imports() -> list[tuple[Path, str]]:
    """Each module with each module of this package that it imports."""
    return [(path, n) for path in MODULES for n in imported(path) if n.startswith("curator.")]


def test_no_module_imports_from_a_later_layer() -> None:
    own = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES}
    wrong = [
        f"{name_of(path)} imports {name}"
        for path, name in inner_imports()
        if own[path] != "__init__"
        if layer_of(name.removeprefix("curator.")) > layer_of(own[path])
    ]
    assert not wrong


def test_the_executor_alone_imports_ray_and_no_stage_imports_another() -> None:
    knows = {path for path in MODULES if any(n.split(".")[0] == "ray" for n in imported(path))}
    assert {path.relative_to(ROOT) for path in knows} <= KNOWS_RAY
    # A stage imports neither the recipe nor another stage.
    wrong = []
    for path, name in inner_imports():
        own, parts = path.relative_to(ROOT).parts, name.split(".")
        if own[0] == "stages" and len(own) > 2:
            another = parts[1] == "stages" and len(parts) > 2 and parts[2] != own[1]
            if another or parts[1] == "recipe":
                wrong.append(f"{name_of(path)} imports {name}")
    assert not wrong


def test_every_stage_has_one_shape() -> None:
    for stage in STAGES:
        folder = ROOT / "stages" / stage
        assert (folder / "config.py").is_file()
        names = {
            statement.value.value
            for node in nodes(folder / "stage.py")
            if isinstance(node, ast.ClassDef)
            for statement in node.body
            if isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Constant)
            and any(isinstance(t, ast.Name) and t.id == "name" for t in statement.targets)
        }
        assert stage in names, f"stages/{stage}/stage.py has no stage of that name"


def test_stages_are_all_there_are_and_no_base_name_occurs_twice() -> None:
    found = {path.name for path in (ROOT / "stages").iterdir() if path.is_dir()}
    # `derive` has the annotators that recipes name.
    assert found - {"__pycache__", "derive"} == set(STAGES)
    # No base name occurs twice.
    free = {"__init__.py", "config.py", "stage.py"}
    counts = Counter(path.name for path in MODULES if path.name not in free)
    assert [name for name, n in counts.items() if n > 1] == []


READERS = (
    "export",
    "planning",
    "proof",
    "removal",
    "report",
    "retrieval",
    "review",
    "verify",
    "view",
)
MOST_FOLDERS = 16
"""Folders of the package. The number may only fall."""


def test_readers_of_outputs_do_not_reach_into_stages() -> None:
    """Pins that formats are below stages, and that no folder of the package is added."""
    found = []
    for path, name in inner_imports():
        parts = path.relative_to(ROOT).parts
        is_reader = (parts[1] if parts[0] == "tools" else parts[0]) in READERS
        if is_reader and name.startswith("curator.stages."):
            found.append(f"{name_of(path)} imports {name}")
    assert not found
    folders = {path.relative_to(ROOT).parts[0] for path in MODULES if path.parent != ROOT}
    assert len(folders) == MOST_FOLDERS


NAMES_STAGES: dict[str, set[str]] = {}
"""Modules outside of `stages/` and `pipeline.py` that name the class of a stage. The list may only
shrink."""
ALSO_WORDS = {"cameras", "scan", "cut", "filter", "select", "commit"}
"""Names of stages that are ordinary words, too."""
LITERALS_OF_STAGES: dict[str, dict[str, int]] = {}
"""Literals outside of `stages/` and `pipeline.py` that stand for a stage. The numbers may only
fall."""
LITERALS_OF_COLUMNS = {
    "api.py": {"caption": 2},
    "dataset/dataset_card.py": {"caption": 1},
    "dataset/reader_indexes.py": {"shard": 3},
    "dataset/sample.py": {"caption": 1},
    "dataset/shard_index.py": {"shard": 3},
    "dataset/side_places.py": {"shard": 5},
    "executor/engine.py": {"cluster": 2},  # of machines, in summary.json
    "export/annotation_rows.py": {"caption": 1},
    "export/cosmos3.py": {"caption": 2},
    "export/dfm_cache.py": {"caption": 1},
    "export/fastvideo_cache.py": {"caption": 2},
    "export/job.py": {"caption": 1, "shard": 3},
    "export/ltx2_cache.py": {"caption": 1},
    "export/output_views.py": {"shard": 4},
    "export/parquet_table.py": {"shard": 1},
    "export/trainer_folder.py": {"caption": 3},
    "export/window_values.py": {"caption": 1},
    "family.py": {"caption": 1},
    "loading/dataset.py": {"caption": 2},
    "loading/ray_decoding.py": {"caption": 1, "shard": 2},
    "loading/shard_reader.py": {"shard": 3},
    "loading/stored_values.py": {"caption": 1},
    "models/saved_text_model.py": {"caption": 1},
    # A column, sections of the recipe, and a key that is gone.
    "recipe.py": {"caption": 2, "cluster": 1, "dedup": 1, "propose": 1, "shard": 1},
    "runs/corpus.py": {"cluster": 1},
    "runs/dry_run_clips.py": {"caption": 2},
    "runs/marked_clips.py": {"caption": 2},
    "runs/recaptioning.py": {"caption": 2, "shard": 5},  # also the section
    "runs/written_clips.py": {"caption": 1},
    "stage.py": {"cluster": 1},
    "tables/family_store.py": {"shard": 3},
    "tables/mark_table.py": {"caption": 2},
    "tables/removal_records.py": {"caption": 1},
    "tools/commands/fit_solving.py": {"propose": 1},  # the section
    "tools/commands/fitting.py": {"caption": 1, "shard": 2},
    "tools/commands/run.py": {"caption": 1, "shard": 1},  # the section, and a noun
    "tools/commands/shards.py": {"caption": 1, "shard": 2},
    "tools/planning/planner.py": {"cluster": 1},  # of machines
    "tools/removal/cluster_centroids.py": {"cluster": 3},
    "tools/removal/removal_selection.py": {"caption": 1, "shard": 2},
    "tools/removal/snapshot_rewriting.py": {"shard": 7},
    "tools/report/contact_sheets.py": {"cluster": 5},
    "tools/report/default_words.py": {"caption": 1},
    "tools/report/funnel.py": {"cluster": 1},  # of machines
    "tools/report/histogram.py": {"propose": 1},  # the section
    "tools/report/page.py": {"shard": 1},
    "tools/retrieval/clip_search.py": {"caption": 1, "shard": 1},
    "tools/retrieval/search_results.py": {"caption": 1, "shard": 1},
    "tools/retrieval/text_search.py": {"caption": 2},
    "tools/review/bound_tuning.py": {"dedup": 1},  # the section
    "tools/verify/index_check.py": {"shard": 2},
    "tools/verify/source_presence.py": {"shard": 3},
    "tools/verify/tar_check.py": {"caption": 1},
    "tools/verify/view_check.py": {"shard": 1},
    "tools/view/viewed_run.py": {"caption": 1, "cluster": 5},
    "trainers/clip_fit.py": {"caption": 1},
    "trainers/trainer_files.py": {"caption": 1},
    "value_header.py": {"caption": 1},
}
"""Literals that equal the name of a stage, and stand for a column, a key of stored JSON, a section
of the recipe or a noun. A module may have fewer; list one more only if it stands for no stage."""
SCHEDULER = ("scheduler.py", "annotator_worker.py")
MOST_ANY_OF_SCHEDULER = 1
"""How often the scheduler and its worker say `Any`, but for imports. The number may only fall."""


def stage_classes() -> set[str]:
    """Names of the classes under `stages/` that derive from a contract in `curator/stage.py`."""
    derived: dict[str, set[str]] = {}
    for path in sorted((ROOT / "stages").rglob("*.py")):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                names = (
                    base.value if isinstance(base, ast.Subscript) else base for base in node.bases
                )
                bases = {name.id for name in names if isinstance(name, ast.Name)}
                derived.setdefault(node.name, set()).update(bases)
    contracts = ast.parse((ROOT / "stage.py").read_text()).body
    known = {node.name for node in contracts if isinstance(node, ast.ClassDef)} & STAGE_CONTRACTS
    assert known == STAGE_CONTRACTS
    while more := {name for name, bases in derived.items() if bases & known} - known:
        known |= more
    return known - STAGE_CONTRACTS


def named(path: Path) -> set[str]:
    """Names that a file has imported, or takes from a module by a dot."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return names


def test_only_stages_and_the_graph_name_stages() -> None:
    """Pins the list exactly: a new module fails here, and so does one that no longer belongs."""
    classes = stage_classes()
    assert len(classes) >= len(STAGES)
    others = [
        p for p in MODULES if name_of(p) != "pipeline.py" and ROOT / "stages" not in p.parents
    ]
    found = {name_of(path): named(path) & classes for path in others}
    assert {name: names for name, names in found.items() if names} == NAMES_STAGES


def test_no_literal_outside_of_stages_and_the_graph_names_a_stage() -> None:
    """A literal that stands for a stage is known by its module and name: the other list has it."""
    names = set(STAGES) - ALSO_WORDS
    more: dict[str, Counter[str]] = {}
    for path in MODULES:
        if name_of(path) == "pipeline.py" or ROOT / "stages" in path.parents:
            continue
        own = name_of(path)
        found = Counter(
            node.value
            for node in nodes(path)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if node.value in names
        )
        of_stages = Counter(LITERALS_OF_STAGES.get(own, {}))
        assert of_stages <= found, f"{own} names fewer stages: lower its numbers"
        if unknown := found - of_stages - Counter(LITERALS_OF_COLUMNS.get(own, {})):
            more[own] = unknown
    assert not more, "ask the graph for the stage, or list the column, key, section or noun"


def test_the_scheduler_says_any_no_more_than_it_did() -> None:
    """Pins the number exactly, so that each one which goes stays gone."""
    walked = (node for name in SCHEDULER for node in nodes(ROOT / name))
    n_any = sum(isinstance(node, ast.Name) and node.id == "Any" for node in walked)
    assert n_any == MOST_ANY_OF_SCHEDULER, "fewer: lower the number; more: name the type"

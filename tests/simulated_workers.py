"""Workers without processes: what a test says becomes of each unit, at once and in order."""

import pickle
import time
from collections.abc import Callable, Sequence

from curator.errors import CuratorError
from curator.executor.fleet import UnitDone, Unmet, Worker, WorkerLost, WorkerPool, WorkerReady
from curator.executor.ray_watch import ClusterState
from curator.executor.sandboxed_process import Reached
from curator.stage import Resources

Does = Callable[[Worker, object, int], object]
"""What a worker does with a unit over which so many died: a result, or a `WorkerLost`, or None to
wait for `finish`."""


class Simulated:
    """A backend; nodes have `room` workers each, and come as `nodes` grows."""

    def __init__(self, does: Does, *, nodes: Sequence[str] = ("one",), room: int = 1 << 30) -> None:
        self.does = does
        self.nodes = list(nodes)
        self.room = room
        self.is_elastic = True
        self.settle_s = 0.0
        self.requested: list[Worker] = []
        self.placed: dict[Worker, str] = {}
        self.ended: list[Worker] = []
        self.kept: list[Worker] = []
        self.sent: list[tuple[str, object]] = []
        self.refusals: dict[str, str] = {}
        self.dead: set[str] = set()
        self.drained: set[str] = set()
        self.unmet_by: dict[str, Unmet] = {}
        self.is_gone = False
        self.reached: dict[int, Reached] = {}

    def start(self, pool: WorkerPool, refused: Sequence[str], worker: Worker) -> None:
        del pool
        self.requested.append(worker)
        self.place(refused)

    def place(self, refused: Sequence[str] = ()) -> None:
        """Gives requested workers a place where there is room."""
        for worker in list(self.requested):
            free = [
                node for node in self.nodes
                if node not in refused and node not in self.dead
                and list(self.placed.values()).count(node) < self.room
                and (worker.pool.place or node) == node
            ]  # fmt: skip
            if free:
                self.requested.remove(worker)
                self.placed[worker] = free[0]
                hello = WorkerReady(node=free[0], name=free[0], refusal=self.refusals.get(free[0]))
                worker.events.put((worker, hello))

    def call(self, worker: Worker, unit: bytes) -> None:
        sent, n_deaths = pickle.loads(unit)
        self.sent.append((self.placed[worker], sent))
        done = self.does(worker, sent, n_deaths)
        if isinstance(done, WorkerLost):
            worker.events.put((worker, done))
        elif done is not None:
            self.finish(worker, done)

    def finish(self, worker: Worker, result: object) -> None:
        now_s = time.time()
        answer = UnitDone(result=pickle.dumps(result), begun_s=now_s - 1, ended_s=now_s)
        worker.events.put((worker, answer))

    def lose_node(self, node: str) -> None:
        """A node goes, and says so later."""
        self.dead.add(node)
        for worker in [one for one, where in self.placed.items() if where == node]:
            worker.events.put((worker, WorkerLost("connection lost")))

    def end(self, worker: Worker, *, may_serve_again: bool) -> None:
        (self.kept if may_serve_again else self.ended).append(worker)
        self.placed.pop(worker, None)
        if worker in self.requested:
            self.requested.remove(worker)

    @property
    def watch(self) -> "Simulated":
        return self

    @property
    def state(self) -> ClusterState:
        there = {*self.nodes, *self.placed.values()} - self.dead
        return ClusterState(nodes={key: {} for key in there}, draining=frozenset(self.drained))

    def wanting(self, pool: WorkerPool) -> str:
        return f"{pool.stage} needs a node"

    def unmet(self, pool: WorkerPool) -> Unmet | None:
        return self.unmet_by.get(pool.stage)

    def relax(self, pool: WorkerPool) -> bool:
        return False

    def check(self) -> None:
        if self.is_gone:
            raise CuratorError("the raylet died")


def pool(stage: str = "work", *, most: int = 1 << 20, gpus: float = 0.0,
         place: str | None = None, is_expected: bool = True) -> WorkerPool:  # fmt: skip
    """A pool."""
    return WorkerPool(
        stage=stage,
        chain=stage.encode(),
        resources=Resources(cpus=1, gpus=gpus),
        most=lambda: most,
        place=place,
        is_expected=is_expected,
    )

"""
The keepstep worker engine (C++); see include/keepstep and docs/design.
"""

import enum
from collections.abc import Sequence
from typing import Any

# Numbers that both sides of a boundary must know (src/bindings/constants.cc).
FLAG_VETO: int
FLAG_FIRST_DESTINATION: int
MAX_STORE_VALUE_BYTES: int
MAX_BLOCKS_OF_GROUP: int
LOADER_NONE: int
LOADER_STARTING: int
LOADER_RUNS: int
LOADER_GIVEN_UP: int
ITEM_SKIPPED: int
ITEM_BATCH: int
ITEM_ERROR: int
ITEM_END: int

class Interrupted(BaseException):
    pass

class JobEnded(BaseException):
    pass

class Fill(enum.Enum):
    """Where a rank gets the state of its generation's version from."""

    NOTHING = ...
    PEERS = ...
    COPY = ...
    PARTS = ...
    SAVED = ...

class NextStep(enum.Enum):
    """What follows in the loop over steps."""

    STEP = ...
    PAUSE = ...
    STOP = ...
    END = ...

class Moved:
    """What a process does because its place is another one than before."""

    @property
    def regroup(self) -> bool:
        """Process groups go."""

    @property
    def rebuild(self) -> bool:
        """Sharded state is divided otherwise: the function is entered, to build anew, before this rank joins."""

    @property
    def resized(self) -> bool:
        """The function hears that the world is another one than before."""

    @property
    def resized_from(self) -> int:
        """Ranks of that world; perhaps as many as now."""

    @property
    def put_back(self) -> bool:
        """Options are put back before: it was told of worlds in between."""

class Assignment:
    """A rank in a generation (src/rank/link/assignment.h)."""

    def __init__(self, rank: int, world_size: int, entry: str, because: str) -> None:
        """A newcomer's, in no generation."""

    @property
    def term(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def newcomer(self) -> bool: ...
    @property
    def entry(self) -> str: ...
    @property
    def because(self) -> str: ...
    @property
    def environment(self) -> dict[str, str]:
        """Variables that follow from the rank."""

class Fault:
    """A fault to carry out, parsed by the agent."""

    def __init__(
        self,
        key: str,
        text: str,
        kind: str,
        phase: str,
        what: str = "",
        on_spare: bool = False,
        late: bool = False,
        rank: int | None = None,
        step: int | None = None,
        probability: float | None = None,
        seed: int | None = None,
        times: int | None = None,
        seconds: float | None = None,
        factor: float | None = None,
        ms: int | None = None,
        mib: int | None = None,
    ) -> None: ...
    key: str  # tells faults of a job apart
    text: str  # as the user gave it
    kind: str
    phase: str
    what: str
    on_spare: bool
    late: bool  # it came while the job ran: a step that is past means the next one
    rank: int | None
    step: int | None
    probability: float | None
    seed: int | None
    times: int | None
    seconds: float | None
    factor: float | None
    ms: int | None
    mib: int | None

class Welcome:
    """What the agent says of the job to a worker that comes."""

    spare: bool
    functions: int
    """Recoverable functions that are over in this job."""

    seed: int
    check_all: bool  # all steps' digests of a rank that joins are checked
    digests: str  # auto, on or off
    digest_every: int  # steps; 0: never
    world: int
    several_nodes: bool
    elastic: bool
    health_check: bool
    learn: bool  # the agent wants to know what the script imports
    term_is_notice: bool  # SIGTERM from outside is for the agent
    rings: str  # path of the socket for rings of batches; empty: there is none
    background_writer: str  # the same of the process that writes checkpoints
    rank_variables: list[str]  # names of environment variables that follow from a rank
    inject: list[Fault]  # faults that may still come

class Engine:
    """The engine inside a rank (src/rank/engine/engine.h)."""

    @staticmethod
    def attach(socket: int, memory: int, fingerprint: dict[str, str]) -> Engine:
        """Takes both descriptors; waits for the agent's welcome."""

    @property
    def worker(self) -> int: ...
    @property
    def welcome(self) -> Welcome: ...
    def take_injections(self) -> list[Fault]: ...
    def tell_parked(self, rehearsed: tuple[bool, float, str] | None, functions: int) -> None:
        """It waits for a rank. How a rehearsal went: done, seconds, because; and how many recoverable functions are
        over for it."""

    def tell_recoverable(self, timeout_s: float) -> None:
        """It entered a recoverable function; 0: without a limit on leaving it."""

    def tell_preload(self, modules: Sequence[str], path: str) -> None:
        """What the script imported beyond the zygote."""

    def tell_paused(self) -> None:
        """It heard that the world changes, and is about to exit."""

    def tell_crashed(self, traceback: str) -> None:
        """The process is about to exit."""

    def tell_injected(self, key: str, detail: str, last: bool) -> None:
        """This fault is carried out now."""

    def tell_note(self, event: str, step: int, because: str, where: str) -> None:
        """A line for the journal."""

    def tell_useful(self, ranks: int, sizes: Sequence[int]) -> None:
        """How many ranks the job's batches feed."""

    def tell_unfit(self, check: str, measured: str, limit: str, counts: bool) -> None:
        """Its health check failed; it is about to exit."""

    def tell_saved(
        self,
        version: int,
        generation: int,
        where: str,
        seconds: float = 0.0,
        left_out: int = 0,
        left_out_steps: Sequence[int] = [],
    ) -> None:
        """Any process can load this version. `generation` 0: it was saved in another start of the job; `left_out`: how
        many saves before it failed; `left_out_steps`: the last of them."""

    def wait_assignment(self) -> Assignment: ...
    @property
    def moved(self) -> Moved:
        """What the newest assignment means for what this process has."""

    def built(self) -> None:
        """What it protects was built for its rank, and for how state is divided now."""

    def let_go(self) -> None:
        """All of that is gone."""

    @property
    def version(self) -> int:
        """Committed steps."""

    @property
    def formed(self) -> bool:
        """The generation formed, and this rank did not leave it."""

    @property
    def pauses(self) -> bool:
        """All ranks know that the world changes after the last committed step."""

    @property
    def stops(self) -> bool:
        """All ranks know that the job stops after it."""

    @property
    def finished(self) -> bool:
        """All ranks finished: nothing is done again."""

    def ready(self, sharded: bool = False, as_built: bool = False) -> tuple[Fill, bool, list[bytes]]:
        """Where the state of `version` comes from, whether peers get theirs from here, and what was written with the
        copy, or with each of the parts."""

    def filling(self) -> None:
        """The state is about to be filled: until `filled` no peer may read it."""

    def filled(self) -> None:
        """The state is that of `version`: peers may pull it."""

    def form(self) -> None: ...
    def leave(self) -> None:
        """The interrupted generation was left, and what was to follow in it is forgotten."""

    def fail(self, step: int, what: str, traceback: str, fatal: bool, after_commit: bool) -> None:
        """Tells the job that user code failed, and waits until the generation is interrupted."""

    def wait_interruption(self) -> None: ...
    def pause(self) -> None:
        """The world changes: waits with all other ranks, and never returns."""

    def start_again(self) -> None:
        """After finish(): another recoverable function begins, without a rank and at version 0."""

    def finish(self) -> None: ...
    def stop(self) -> None:
        """A notice came: ends with all other ranks, and never returns."""

    def next_step(self, until: int) -> NextStep: ...
    def pause_asked(self) -> bool:
        """Whether the world is about to change, as far as this node was told."""

    def notice(self) -> str:
        """Why the job has to stop soon, as this node was told; empty: it was not."""

    def close(self) -> None: ...
    def communicator(self) -> Communicator: ...
    def interrupted(self) -> bool: ...
    def broken_link(self) -> str: ...
    def updating(self) -> bool: ...
    def set_state(self, kind: str, version: int) -> None: ...
    def state(self) -> tuple[str, int]: ...
    def publish(self, manifest: str, pieces: Sequence[tuple[int, int, int]]) -> None:
        """pieces: (address, bytes, CUDA device or -1) of each tensor, in the manifest's order."""

    def stop_publishing(self) -> None: ...
    def pull_manifest(self) -> str: ...
    def pull(self, pieces: Sequence[tuple[int, int, int]]) -> tuple[int, int]: ...
    def reshard(self, version: int, shards: list[str], needs: str, text: bytes) -> None: ...
    def leave_shard(self, version: int) -> None: ...
    def load_shard(self, version: int, pieces: Sequence[tuple[int, int, int]]) -> None: ...
    def protect_shard(
        self,
        version: int,
        pieces: Sequence[tuple[int, int, int]],
        text: bytes,
        copies: int,
        parity: tuple[int, int] = ...,
    ) -> None:
        """Begins to copy; the pieces must not change before `wait_shard`."""

    def wait_shard(self, version: int) -> None: ...
    def shard_counts(self) -> tuple[int, int, int, int, int, int]:
        """(versions protected, bytes of one, ns the newest took, waits for one, ns in these)."""

    def vote(self, flags: int) -> int:
        """All ranks vote on the step: it counts, on all or on none. Returns the flags of all."""

    @property
    def last_vote(self) -> tuple[int, int]:
        """CLOCK_MONOTONIC in ns: when this rank voted, and when it knew the decision."""

    def begin_update(self) -> None: ...
    def drop_state(self) -> None:
        """The state is of no version: no peer may read it, and it has to be hydrated."""

    def end_update(self) -> None:
        """The state is the step's: that is committed."""

    def log(self, step: int, values: str) -> None:
        """values: a JSON object as text, published with the step."""

    def record_digest(self, step: int, gradients: int, state: int) -> None:
        """What this rank votes for in `step`: digests of its gradients and of its state; 0: not compared."""

    def record_loss(self, step: int, sum: float, micro_batches: int) -> None: ...
    def mean_loss(self, step: int) -> float: ...
    def at(self, step: int, micro_batch: int) -> None:
        """How far the main thread is: micro-batches from 1; 0: before."""

    def leave_loop(self) -> None:
        """The main thread is in no step."""

    def slow(self, change: int) -> None:
        """A section of run.slow begins (1) or ends (-1)."""

    def save_capsule(self, version: int, bytes: bytes) -> None: ...
    def load_capsule(self, version: int) -> bytes | None: ...
    def want_capsule(self, wanted: bool) -> None: ...
    def copy_capsule(self, version: int) -> None: ...
    def store(
        self, op: str, key: str, value: bytes, timeout_ms: int, ends_with_generation: bool = True
    ) -> tuple[bool, bool, bool, bytes]:
        """(answered, interrupted, ok, value)"""

def delay_links(ms: int) -> None:
    """An injected fault: whatever this process sends to other nodes waits so long first; 0 ends it."""

def check_loopback(tcp: bool) -> str:
    """Sums and messages between two ranks in this process; empty, or what went wrong."""

def unfit_gpus() -> list[tuple[str, str, str]]:
    """(check, measured, limit) of the GPUs here that no rank should use; none without NVIDIA's driver."""

def digest_pieces(pieces: Sequence[tuple[int, int]], threads: int) -> int:
    """64 bits that depend on all pieces (address, bytes), in their order; at most `threads` read at once."""

def digest(address: int, bytes: int) -> int:
    """XXH3 of a piece of memory."""

def mix_seed(*parts: int) -> int:
    """64 bits that depend on all `parts` (src/data/order/seeds.h); each of them has 64 bits."""

def samples_at(seed: int, position: int, count: int, dataset_size: int) -> list[int]:
    """
    The samples at positions position..position+count-1 of the job's order (src/data/order/sample_order.h).
    """

class Communicator:
    """
    The collectives of one generation (src/comm/communicator.h). Any thread; Interrupted after end().
    """

    def create_group(self, members: Sequence[int], key: str) -> int: ...
    def release_group(self, group: int) -> None: ...
    def all_reduce(self, arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, /) -> int: ...
    def reduce(self, arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /) -> int: ...
    def broadcast(self, arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, /) -> int: ...
    def all_gather(self, arg0: int, arg1: int, arg2: Sequence[int], arg3: int, arg4: int, /) -> int: ...
    def reduce_scatter(
        self, arg0: int, arg1: Sequence[int], arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /
    ) -> int: ...
    def gather(self, arg0: int, arg1: int, arg2: Sequence[int], arg3: int, arg4: int, arg5: int, /) -> int: ...
    def scatter(self, arg0: int, arg1: Sequence[int], arg2: int, arg3: int, arg4: int, arg5: int, /) -> int: ...
    def all_to_all(
        self,
        arg0: int,
        arg1: Sequence[int],
        arg2: Sequence[int],
        arg3: Sequence[int],
        arg4: Sequence[int],
        arg5: int,
        /,
    ) -> int: ...
    def all_reduce_canonical(
        self,
        group: int,
        leaves: int,
        begin: int,
        end: int,
        partials: Sequence[int],
        output: int,
        count: int,
        dtype: int,
        weight: int,
        timeout_ns: int,
    ) -> int: ...
    def barrier(self, group: int, timeout_ns: int) -> int: ...
    def send(self, arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, /) -> int: ...
    def receive(self, arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, /) -> int: ...
    def test(self, arg: int, /) -> tuple[int, int, str, int, list[int]]: ...
    def wait(self, arg: int, /) -> tuple[int, int, str, int, list[int]]: ...
    def forget(self, arg: int, /) -> None: ...
    def watch(self, arg: int, /) -> None: ...
    def next_completed(self) -> list[tuple[int, int, str, int, list[int]]]: ...
    def close(self) -> None: ...
    def end(self) -> None:
        """
        Waits for the threads inside and for its operations, which must complete by themselves; then releases it.
        """

    def interrupted(self) -> bool: ...
    def broken_link(self) -> str: ...
    def recent(self) -> list[dict[str, object]]: ...
    def collectives_entered(self) -> int: ...

class NodeLink:
    """
    A rank that keepstep did not start, and its node's agent (src/rank/link/node_link.h).
    """

    @staticmethod
    def connect_or_start(job: str, command: str) -> NodeLink: ...
    def join(self, key: str, rank: int, world: int, timeout_ms: int) -> None: ...
    def communicator(self) -> Communicator: ...
    @property
    def rings_socket(self) -> str:
        """Where the agent answers for rings."""

    def abort(self, because: str) -> None: ...
    def interrupted(self) -> bool: ...
    def why_interrupted(self) -> str: ...
    def store(self, op: str, key: str, value: bytes, timeout_ms: int) -> tuple[bool, bool, bool, bytes]:
        """(answered, interrupted, ok, value)"""

    def close(self) -> None: ...

class CanonicalSum:
    """Leaves added in the canonical order (src/comm/collectives/canonical_sum.h)."""

    def __init__(self, count: int, dtype: int) -> None: ...
    def begin(self, leaves: int, begin: int, end: int) -> None: ...
    def add(self, offset: int, values: int, count: int) -> None:
        """Elements of the current leaf; values 0: zeros."""

    @property
    def count(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def next_leaf(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    def write(self, destination: int, divisor: int) -> None: ...
    def partials(self) -> list[int]: ...

def even_run(leaves: int, member: int, members: int) -> tuple[int, int]:
    """[begin, end) of `leaves` shared evenly."""

def sum_of_squares(values: int, count: int, dtype: int) -> float:
    """In float64, in a fixed order."""

class TokenCorpus:
    """PREFIX.bin and PREFIX.idx, mapped (src/data/corpus/token_corpus.h)."""

    def __init__(self, prefix: str) -> None: ...
    @property
    def prefix(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def documents(self) -> int: ...
    def document_start(self, document: int) -> int:
        """Its first token in the stream; for `documents` the number of all tokens."""

    def read(
        self,
        samples: Sequence[int],
        count: int,
        out: int,
        first: int = 0,
        stride: int = 1,
        most: int = ...,
        rows: Sequence[int] | None = None,
        widen: bool = True,
    ) -> None:
        """A row of `count` tokens for each sample, which begins at token first + sample * stride: as int64, or
        (widen=False) as they lie in the file. Into rows 0, 1, ... of `out`, or `rows`."""

    def describe(
        self,
        samples: Sequence[int],
        count: int,
        sequence: int,
        position: int,
        first: int = 0,
        stride: int = 1,
        most: int = ...,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Two rows of `count` int64 for each sample."""

    def will_need(self, samples: Sequence[int], count: int, first: int = 0, stride: int = 1, most: int = ...) -> None:
        """Has them read by this process's read-ahead thread (src/data/corpus/read_ahead.h)."""

class PackedCorpus:
    """Documents in rows of fixed length (src/data/corpus/packed_corpus.h)."""

    def __init__(
        self, prefix: str, capacity: int, too_long: str, documents: tuple[int, int], plan_folder: str = ""
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def cut(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def has_loss_mask(self) -> bool: ...
    def read(
        self,
        rows: Sequence[int],
        padding: int,
        tokens: int,
        documents: int,
        positions: int,
        trained: int,
        into: Sequence[int] | None = None,
    ) -> None:
        """Rows of `capacity` numbers each: int64, and bool for `trained`; into rows 0, 1, ... or `into`."""

    def will_need(self, rows: Sequence[int]) -> None: ...

class TensorWatch:
    """Versions, addresses and some bytes of a fixed list of tensors, as they were at the last `take`.

    Holds the tensors. From one thread at a time.
    """

    def __init__(self, tensors: list[Any], placed: list[Any]) -> None:
        """`tensors`: whose versions count; `placed`: whose addresses do."""

    def settle(self, parts: list[tuple[int, int]]) -> None:
        """`placed` are where they are now; `parts` (address, bytes) are read as long as they stay there."""

    def in_place(self) -> bool: ...
    def take(self) -> bool:
        """False, and nothing taken: not all are in place."""

    def same(self, written: bool) -> bool:
        """Whether all are in place and hold the same bytes; `written`: and torch wrote to none of them."""

    @property
    def versions(self) -> list[int]: ...
    @property
    def bytes(self) -> bytes: ...

class TokenWriter:
    """Writes a corpus, all of it or nothing (src/data/corpus/token_writer.h)."""

    @staticmethod
    def create(prefix: str, type: str, overwrite: bool = False) -> TokenWriter: ...
    @staticmethod
    def join(prefix: str, joined: str, type: str) -> TokenWriter:
        """Of parts, which may go once they are in: `joined` stays until `finish`."""

    def add(self, tokens: list[int]) -> None:
        """A sequence."""

    def add_bytes(self, text: bytes, end: int = -1) -> None:
        """A sequence of bytes, and a last token unless that is negative."""

    def append(self, prefix: str) -> int:
        """All of another corpus; returns the checksum of its tokens."""

    def take_over(self, prefix: str, bytes: int) -> int:
        """All of another corpus that an earlier writer appended here; returns the checksum of its tokens."""

    def sync(self) -> None:
        """All that was added is on the disk."""

    def end_document(self) -> None: ...
    def finish(self, durable: bool = True) -> None: ...
    def discard(self) -> None:
        """Gives up: removes what it wrote."""

    @property
    def tokens(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def documents(self) -> int: ...
    @property
    def checksum(self) -> int:
        """XXH3 of the .bin file; after `finish`."""

class DocumentReader:
    """The texts of an input file (src/data/build/document_reader.h)."""

    @staticmethod
    def open(
        path: str, format: str, compression: str, range: tuple[int, int] | None, field: str, skip: bool
    ) -> DocumentReader: ...
    def copy_to(self, writer: TokenWriter, end: int, most: int) -> bool:
        """Documents of about `most` bytes of text to `writer` as bytes, each ended by the token `end` unless that is
        negative; False at the end."""

    def take(self, most: int) -> list[str]:
        """The texts that have about `most` bytes together; none at the end."""

    @property
    def position(self) -> int:
        """How far the file itself was read, in bytes."""

    @property
    def documents(self) -> int: ...
    @property
    def text_bytes(self) -> int: ...
    @property
    def empty(self) -> int: ...
    @property
    def unreadable(self) -> int: ...
    @property
    def complaints(self) -> list[str]: ...

def add_documents(writer: TokenWriter, documents: list[list[int]]) -> None:
    """Each list of tokens is a document."""

def add_strings(writer: TokenWriter, offsets: int, count: int, data: int, bytes: int, end: int) -> tuple[int, int, int]:
    """Texts as Arrow's large_string has them, each a document; returns documents, bytes of text, empty ones."""

class TokenScan:
    """Goes once through a .bin file (src/data/corpus/token_scan.h)."""

    def __init__(self, corpus: TokenCorpus) -> None: ...
    def step(self, bytes: int) -> bool:
        """Reads about as many bytes more; False where all was read."""

    @property
    def position(self) -> int: ...
    @property
    def checksum(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def greatest(self) -> int: ...

def sequence_lengths(corpus: TokenCorpus) -> tuple[int, int, int]:
    """Shortest, longest, how many are empty."""

def token_bytes(type: str) -> int: ...
def narrowest_type(vocabulary: int) -> str:
    """The type in which tokens of such a vocabulary are written."""

class Blend:
    """Sources in fixed shares (src/data/order/blend.h)."""

    MAX_PERIOD: int
    def __init__(self, counts: list[int]) -> None: ...
    @property
    def period(self) -> int: ...
    def at(self, position: int) -> tuple[int, int]:
        """(source, number of its own)."""

    def run(self, position: int, count: int) -> tuple[list[int], list[int]]:
        """The sources of `count` samples, and their numbers of their own."""

def blend_counts(weights: list[float], period: int) -> list[int]:
    """Whole numbers in the proportion of `weights` that add up to `period`."""

class RingView:
    """A batch as bytes: a private mapping of shared pages (src/data/ring/ring.h)."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class RingWriter:
    """The loader process's end of a ring (src/data/ring/ring.h)."""

    @property
    def head(self) -> int: ...
    @property
    def start(self) -> int: ...
    def last(self) -> tuple[int, int, int] | None:
        """(kind, epoch, index) of the newest item; None: there is none."""

    def last_state(self) -> bytes: ...
    def put(
        self,
        kind: int,
        epoch: int,
        index: int,
        batch_bytes: int,
        state_bytes: int,
        pieces: Sequence[tuple[int, int, int]],
    ) -> None:
        """Waits for room. pieces: (offset from the item's beginning, address, bytes); the state begins at the next
        multiple of 64 behind the batch."""

class Ring:
    """A rank's place in a ring of batches (src/rank/link/ring_link.h, src/data/ring/ring.h)."""

    @staticmethod
    def connect(path: str) -> Ring: ...
    def open(self, name: str, round: int, ahead: int, behind: int, limit_bytes: int, position: int) -> None: ...
    def leave(self) -> None: ...
    @property
    def joined(self) -> bool:
        """False once the agent has given this place away: what is read then may be written over."""

    def detach(self) -> None:
        """Views that are held get memory of their own."""

    @property
    def position(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def loader(self) -> int: ...
    @property
    def newest(self) -> int:
        """The kind of the last item that is published; -1: there is none."""

    @property
    def why(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def bell(self) -> int: ...
    def move_to(self, position: int) -> None:
        """IndexError: items are gone."""

    def wait(self, seen: int) -> None:
        """Sleeps until the bell rings; returns early at a signal."""

    def item(self, number: int) -> tuple[int, int, int]:
        """(kind, epoch, index)"""

    def view(self, number: int) -> RingView: ...
    def state(self, number: int) -> bytes: ...
    def ask_for_loader(self) -> int:
        """A socket for the loader process that the caller is to start; -1: it is not."""

    def writer(self) -> RingWriter: ...

def page_faults() -> int:
    """How often this thread waited for a page to come from a disk, since it began."""

def read_ahead_done() -> tuple[int, int, int, int]:
    """Waits until the read-ahead thread has done all that was asked for: (bytes, requests for which something was read,
    that were dropped, that were not looked at) since the process began."""

def read_ahead_wake() -> None:
    """A reader had to wait for the disk."""

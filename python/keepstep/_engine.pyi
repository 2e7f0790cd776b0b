"""
The keepstep worker engine (C++); see include/keepstep and docs/design.
"""

import enum
from collections.abc import Sequence
from typing import Any

# Constants that Python and C++ share (src/bindings/constants.cc).
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
    """What the loop over steps does next."""

    STEP = ...
    PAUSE = ...
    STOP = ...
    END = ...

class Moved:
    """What a process must do because its place has changed."""

    @property
    def regroup(self) -> bool:
        """Process groups must be dropped."""

    @property
    def rebuild(self) -> bool:
        """The sharding has changed: the function is entered, to build everything again, before this rank joins."""

    @property
    def resized(self) -> bool:
        """The training function is told that the world is no longer `resized_from`, or is that size again."""

    @property
    def resized_from(self) -> int:
        """The size of the world before; it may equal the current size."""

    @property
    def put_back(self) -> bool:
        """Options are restored first, because the function was told of worlds in between."""

class Assignment:
    """A rank in a generation (src/rank/link/assignment.h)."""

    def __init__(self, rank: int, world_size: int, entry: str, because: str) -> None:
        """The assignment of a newcomer, in no generation."""

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
        """Environment variables that depend on the rank."""

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
    key: str  # distinguishes the faults of a job
    text: str  # as the user gave it
    kind: str
    phase: str
    what: str
    on_spare: bool
    late: bool  # it arrived while the job ran: a step in the past means the next one
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
    """What the agent tells a new worker about the job."""

    spare: bool
    functions: int
    """Recoverable functions that are over in this job."""

    seed: int
    check_all: bool  # check all steps for changes outside the commit, not only the first
    digests: str  # "auto", "on" or "off"
    digest_every: int  # steps; 0: never
    world: int
    several_nodes: bool
    elastic: bool
    health_check: bool
    learn: bool  # the agent wants to know what the script imports
    term_is_notice: bool  # SIGTERM from outside is meant for the agent
    rings: str  # path of the socket for rings of batches; empty: none
    background_writer: str  # the same for the background writer
    rank_variables: list[str]  # names of environment variables that depend on the rank
    inject: list[Fault]  # faults that may still come

class Engine:
    """The engine inside a rank (src/rank/engine/engine.h)."""

    @staticmethod
    def attach(socket: int, memory: int, fingerprint: dict[str, str]) -> Engine:
        """Takes over both descriptors; waits for the agent's welcome."""

    @property
    def worker(self) -> int: ...
    @property
    def welcome(self) -> Welcome: ...
    def take_injections(self) -> list[Fault]: ...
    def tell_parked(self, rehearsed: tuple[bool, float, str] | None, functions: int) -> None:
        """This worker waits for a rank. `rehearsed`: how its rehearsal went (done, seconds, because). `functions`: how
        many recoverable functions have ended for it."""

    def tell_recoverable(self, timeout_s: float) -> None:
        """This worker entered a recoverable function. `timeout_s`: time to leave an interrupted step; 0: no limit."""

    def tell_preload(self, modules: Sequence[str], path: str) -> None:
        """Modules that the script imported in addition to the zygote's."""

    def tell_paused(self) -> None:
        """This worker was told that the world changes, and is about to exit."""

    def tell_crashed(self, traceback: str) -> None:
        """This process is about to exit."""

    def tell_injected(self, key: str, detail: str, last: bool) -> None:
        """This fault is about to be carried out."""

    def tell_note(self, event: str, step: int, because: str, where: str) -> None:
        """Writes a line to the journal."""

    def tell_useful(self, ranks: int, sizes: Sequence[int]) -> None:
        """How many ranks the job's batches feed. `sizes`: the only possible world sizes, if micro-batches must be
        shared evenly."""

    def tell_unfit(self, check: str, measured: str, limit: str, counts: bool) -> None:
        """This worker's health check failed, and it is about to exit. `counts`: whether it counts against its node."""

    def tell_publication(self, name: str, version: int, memory: int) -> None:
        """Hands a publication to the agent. `memory`: a descriptor of sealed memory, which stays the caller's."""

    def tell_saved(
        self,
        version: int,
        generation: int,
        where: str,
        seconds: float = 0.0,
        left_out: int = 0,
        left_out_steps: Sequence[int] = [],
    ) -> None:
        """Any process can load this version. `generation` 0: saved in another start of the job. `left_out`: number of
        failed saves before it; `left_out_steps`: the most recent ones."""

    def wait_assignment(self) -> Assignment: ...
    @property
    def moved(self) -> Moved:
        """What the newest assignment means for what this process holds."""

    def built(self) -> None:
        """The state that this process protects was built for its rank and for the current sharding."""

    def let_go(self) -> None:
        """All of that state has been freed."""

    @property
    def version(self) -> int:
        """Number of committed steps."""

    @property
    def formed(self) -> bool:
        """Whether the generation formed and this rank has not left it."""

    @property
    def pauses(self) -> bool:
        """Whether all ranks know that the world changes after the last committed step."""

    @property
    def stops(self) -> bool:
        """Whether all ranks know that the job stops after the last committed step."""

    @property
    def finished(self) -> bool:
        """Whether all ranks finished; then nothing is redone."""

    def ready(self, sharded: bool = False, as_built: bool = False) -> tuple[Fill, bool, list[bytes]]:
        """Returns where the state of `version` comes from, whether peers fill theirs from this rank, and the texts
        saved with the copy or with each part. `sharded`: no other rank holds what this one protects. `as_built`: and it
        has not changed since it was built."""

    def filling(self) -> None:
        """The state is about to be filled: no peer may read it until `filled`."""

    def filled(self) -> None:
        """The state is that of `version`; peers may pull it."""

    def form(self) -> None: ...
    def leave(self) -> None:
        """This rank has left an interrupted generation, and discards what was to follow in it."""

    def fail(self, step: int, what: str, traceback: str, fatal: bool, after_commit: bool) -> None:
        """Reports that user code failed, and waits until the generation is interrupted."""

    def wait_interruption(self) -> None: ...
    def pause(self) -> None:
        """The world changes: waits with all other ranks, and never returns."""

    def start_again(self) -> None:
        """After `finish`: this process enters another recoverable function, without a rank and at version 0."""

    def finish(self) -> None: ...
    def stop(self) -> None:
        """A notice stops the job: ends with all other ranks, and never returns."""

    def next_step(self, until: int) -> NextStep: ...
    def pause_asked(self) -> bool:
        """Whether the world is about to change, as far as this node knows."""

    def notice(self) -> str:
        """Why the job must stop soon; empty if this node has received no notice."""

    def close(self) -> None: ...
    def communicator(self) -> Communicator: ...
    def interrupted(self) -> bool: ...
    def broken_link(self) -> str: ...
    def updating(self) -> bool: ...
    def set_state(self, kind: str, version: int) -> None: ...
    def state(self) -> tuple[str, int]: ...
    def publish(self, manifest: str, pieces: Sequence[tuple[int, int, int]]) -> None:
        """`pieces`: (address, bytes, CUDA device or -1) of each tensor, in the manifest's order."""

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
        """Starts to copy; the pieces must not change until `wait_shard`."""

    def wait_shard(self, version: int) -> None: ...
    def shard_counts(self) -> tuple[int, int, int, int, int, int]:
        """(versions protected, tensor bytes of the newest, ns it took, ns of that spent giving it to keepers, calls of
        `wait_shard` that found it unfinished, ns spent in those)."""

    def vote(self, flags: int) -> int:
        """All ranks vote on the step, which is committed on all or on none. Returns the union of all flags."""

    @property
    def last_vote(self) -> tuple[int, int]:
        """When this rank voted, and when it learned the decision; CLOCK_MONOTONIC in ns."""

    def begin_update(self) -> None: ...
    def drop_state(self) -> None:
        """The state belongs to no version: no peer may read it, and it must be hydrated."""

    def end_update(self) -> None:
        """The state is that of the step, which is now committed."""

    def log(self, step: int, values: str) -> None:
        """`values`: a JSON object as text, published with the step."""

    def record_digest(self, step: int, gradients: int, state: int) -> None:
        """The digests of gradients and state that this rank votes with in `step`; 0: not compared."""

    def record_loss(self, step: int, sum: float, micro_batches: int) -> None: ...
    def mean_loss(self, step: int) -> float: ...
    def at(self, step: int, micro_batch: int) -> None:
        """The main thread's progress. `micro_batch` counts from 1; 0: before the first."""

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
    """An injected fault: delays everything that this process sends to other nodes by `ms`; 0 ends the delay."""

def check_loopback(tcp: bool) -> str:
    """Tries sums and messages between two ranks in this process. Returns what went wrong; empty if nothing did."""

def unfit_gpus() -> list[tuple[str, str, str]]:
    """(check, measured, limit) for each GPU of this machine that no rank should use; empty without NVIDIA's driver."""

def digest_pieces(pieces: Sequence[tuple[int, int]], threads: int) -> int:
    """A 64-bit digest of all pieces (address, bytes), in order; at most `threads` threads read at once."""

def digest(address: int, bytes: int) -> int:
    """The XXH3 digest of a range of memory."""

def mix_seed(*parts: int) -> int:
    """Mixes `parts`, 64 bits each, into a 64-bit seed (src/data/order/seeds.h)."""

def samples_at(seed: int, position: int, count: int, dataset_size: int) -> list[int]:
    """
    The samples at positions position..position+count-1 of the job's order (src/data/order/sample_order.h).
    """

class Communicator:
    """
    The collectives of one generation (src/comm/communicator.h). Any thread. Raises Interrupted after end().
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
        Waits for the threads inside and for its operations, which must complete on their own; then releases it.
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
    def connect_or_start(job: str, command: str, addresses: str = "", self: int = 0) -> NodeLink:
        """
        addresses: of all nodes' agents, with commas, if there are several; self: the place of this node's
        """
    def join(self, key: str, rank: int, world: int, timeout_ms: int) -> None: ...
    def communicator(self) -> Communicator: ...
    @property
    def rings_socket(self) -> str:
        """Path of the agent's socket for rings."""

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
        """Adds elements of the current leaf. `values` 0: zeros."""

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
    """The range [begin, end) of `member` when `leaves` are shared evenly among `members`."""

def sum_of_squares(values: int, count: int, dtype: int) -> float:
    """Computed in float64, in a fixed order."""

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
        """Position of the document's first token in the stream; for `documents`, the total number of tokens."""

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
        """Reads a row of `count` tokens for each sample, from token first + sample * stride: as int64, or
        (widen=False) in the file's type. Writes rows 0, 1, ... of `out`, or those in `rows`."""

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
        """Writes two rows of `count` int64 for each sample."""

    def will_need(self, samples: Sequence[int], count: int, first: int = 0, stride: int = 1, most: int = ...) -> None:
        """Has this process's read-ahead thread read these samples (src/data/corpus/read_ahead.h)."""

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
        """Reads rows of `capacity` numbers each: int64, and bool for `trained`. Writes rows 0, 1, ..., or those in
        `into`."""

    def will_need(self, rows: Sequence[int]) -> None: ...

class TensorWatch:
    """The versions, addresses and some bytes of a fixed list of tensors at the last `take`.

    Holds references to the tensors. One thread at a time.
    """

    def __init__(self, tensors: list[Any], placed: list[Any]) -> None:
        """`tensors`: those whose versions are watched; `placed`: those whose addresses are."""

    def settle(self, parts: list[tuple[int, int]]) -> None:
        """Records where `placed` are now; `parts` (address, bytes) are read as long as the tensors stay there."""

    def in_place(self) -> bool: ...
    def take(self) -> bool:
        """Returns False, taking nothing, if not all are in place."""

    def same(self, written: bool) -> bool:
        """Whether all are in place and hold the same bytes, and (`written`) torch wrote to none of them."""

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
        """A writer that joins parts, which may be deleted once added; `joined` stays until `finish`."""

    def add(self, tokens: list[int]) -> None:
        """Adds a sequence."""

    def add_bytes(self, text: bytes, end: int = -1) -> None:
        """Adds a sequence of bytes, followed by the token `end` unless that is negative."""

    def append(self, prefix: str) -> int:
        """Adds all of another corpus; returns the checksum of its tokens."""

    def take_over(self, prefix: str, bytes: int) -> int:
        """The same for a corpus that an earlier writer already appended here."""

    def sync(self) -> None:
        """Makes everything added so far durable."""

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
        """Writes documents with about `most` bytes of text to `writer` as bytes, each followed by the token `end`
        unless that is negative. False at the end of the input."""

    def take(self, most: int) -> list[str]:
        """The next texts, about `most` bytes in total; empty at the end of the input."""

    @property
    def position(self) -> int:
        """How far the file itself has been read, in bytes."""

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
    """Adds each list of tokens as a document."""

def add_strings(writer: TokenWriter, offsets: int, count: int, data: int, bytes: int, end: int) -> tuple[int, int, int]:
    """Adds texts in the layout of Arrow's large_string, each a document. Returns the number of documents, of bytes of
    text, and of empty texts."""

class TokenScan:
    """Reads a .bin file once, from start to end (src/data/corpus/token_scan.h)."""

    def __init__(self, corpus: TokenCorpus) -> None: ...
    def step(self, bytes: int) -> bool:
        """Reads about `bytes` more; False once everything has been read."""

    @property
    def position(self) -> int: ...
    @property
    def checksum(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def greatest(self) -> int: ...

def sequence_lengths(corpus: TokenCorpus) -> tuple[int, int, int]:
    """The shortest, the longest, and the number of empty ones."""

def token_bytes(type: str) -> int: ...
def narrowest_type(vocabulary: int) -> str:
    """The narrowest type that holds the tokens of a vocabulary of this size."""

class Blend:
    """Sources in fixed shares (src/data/order/blend.h)."""

    MAX_PERIOD: int
    def __init__(self, counts: list[int]) -> None: ...
    @property
    def period(self) -> int: ...
    def at(self, position: int) -> tuple[int, int]:
        """(source, sample number within that source)."""

    def run(self, position: int, count: int) -> tuple[list[int], list[int]]:
        """The sources of `count` samples, and their sample numbers within those sources."""

def blend_counts(weights: list[float], period: int) -> list[int]:
    """Whole numbers in proportion to `weights` whose sum is `period`."""

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
        """(kind, epoch, index) of the newest item; None if there is none."""

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
        """Waits for room. `pieces`: (offset from the start of the item, address, bytes). The state starts at the next
        multiple of 64 after the batch."""

class Ring:
    """A rank's place in a ring of batches (src/rank/link/ring_link.h, src/data/ring/ring.h)."""

    @staticmethod
    def connect(path: str) -> Ring: ...
    def open(self, name: str, round: int, ahead: int, behind: int, limit_bytes: int, position: int) -> None: ...
    def leave(self) -> None: ...
    @property
    def joined(self) -> bool:
        """False once the agent has given this place to another process: what is read then may be overwritten."""

    def detach(self) -> None:
        """Gives live views memory of their own."""

    @property
    def position(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def loader(self) -> int: ...
    @property
    def newest(self) -> int:
        """The kind of the last published item; -1 if there is none."""

    @property
    def why(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def bell(self) -> int: ...
    def move_to(self, position: int) -> None:
        """Raises IndexError if the items are gone."""

    def wait(self, seen: int) -> None:
        """Sleeps until the bell differs from `seen`, or a signal arrives."""

    def item(self, number: int) -> tuple[int, int, int]:
        """(kind, epoch, index)"""

    def view(self, number: int) -> RingView: ...
    def state(self, number: int) -> bytes: ...
    def ask_for_loader(self) -> int:
        """A socket for the loader process, which the caller must start; -1 if another process starts it."""

    def writer(self) -> RingWriter: ...

def page_faults() -> int:
    """How often this thread has waited for a page from a disk."""

def read_ahead_done() -> tuple[int, int, int, int]:
    """Waits until the read-ahead thread has done everything it was asked for. Returns (bytes read, requests for which
    something was read, dropped requests, skipped requests) since the process started."""

def read_ahead_wake() -> None:
    """Reports that a reader had to wait for the disk."""

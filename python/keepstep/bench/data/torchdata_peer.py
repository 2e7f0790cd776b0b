"""The opponent torchdata (StatefulDataLoader): ``python -m keepstep.bench.data.torchdata_peer`` installs it."""

from __future__ import annotations

from keepstep.bench.harness.peer_environment import Peer

TORCHDATA = Peer("torchdata", "torchdata", "0.11.0", "keepstep.bench.data.torchdata_peer")

if __name__ == "__main__":
    TORCHDATA.install()

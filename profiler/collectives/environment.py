"""The environment of collectives: that of the device, and what of the network's software and nodes is known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from profiler.collectives.places import RankPlace, device_index
from profiler.collectives.settings import CollectiveSettings
from profiler.environment import read_environment
from profiler.importers.base import host_digest
from profiler.measurement import Environment
from profiler.topology import node_topology

COLLECTIVE_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "GLOO_DEVICE_TRANSPORT",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_IB_SL",
    "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_PXN_DISABLE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_CTA_POLICY",
    "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_PLUGIN",
    "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CROSS_NIC",
    "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE",
    "NCCL_TUNER_PLUGIN",
    "NCCL_LAUNCH_MODE",
    "TORCH_NCCL_HIGH_PRIORITY",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "FI_PROVIDER",
    "FI_EFA_USE_DEVICE_RDMA",
)
"""Variables that change how fast collectives are; no other is ever stored, since an environment can hold secrets."""


def collective_environment(settings: CollectiveSettings, place: RankPlace, hosts: Sequence[str]) -> Environment:
    """The environment of one rank.

    Args:
        settings: of the run.
        place: of the rank.
        hosts: a digest of the host of each rank.
    """
    environment = read_environment(settings.device, _device_index(settings, place))
    identity = {
        **environment.identity,
        "backend": "nccl" if settings.device == "cuda" else "gloo",
        "nodes": str(len(set(hosts))),
        "world_ranks": str(place.ranks),
        "node_set": host_digest(set(hosts), settings.host_key),
    }
    if settings.device == "cuda":
        identity["nccl"] = _nccl_version()
    identity |= {name: os.environ[name] for name in COLLECTIVE_VARIABLES if name in os.environ}
    state = {**environment.state, "host": hosts[place.rank]}  # under the user's key, not a plain hash of its name
    read = replace(environment, identity=identity, state=state)
    return node_topology().added_to(read) if settings.device == "cuda" else read


def _device_index(settings: CollectiveSettings, place: RankPlace) -> int:
    if settings.device != "cuda":
        return 0
    import torch

    return device_index(place, torch.cuda.device_count())


def _nccl_version() -> str:
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]

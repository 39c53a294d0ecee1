"""Links, clusters and the cluster file."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.errors import BadInput, OutOfRange
from oracle.machine import MAX_FILE_BYTES, Cluster, Link, Tier, load_cluster, parse_link

ABCI = """
name: abci
device: Tesla V100-SXM2-16GB
memory: 16GiB
device_spread: 0.02
tiers:                      # innermost first
  - {name: node, devices: 4, link: {latency: 9us, bandwidth: 50GB/s}}
  - {name: rack, nodes: 17, link: {latency: 40us, bandwidth: 12.5GB/s}, nics_per_node: 2}
  - {name: system, link: {latency: 41us, bandwidth: 12.5GB/s}, oversubscription: 3}
"""
LINK = Link(1e-6, 1e9)


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return path


def test_a_cluster_file_becomes_tiers_in_si(tmp_path: Path) -> None:
    assert load_cluster(write(tmp_path, ABCI)) == Cluster(
        "abci",
        "Tesla V100-SXM2-16GB",
        (
            Tier("node", Link(9e-6, 50e9), 4),
            Tier("rack", Link(40 * 1e-6, 12.5e9), 68, nics_per_node=2),  # 17 nodes of 4
            Tier("system", Link(41 * 1e-6, 12.5e9), oversubscription=3),
        ),
        16 * 2**30,
        device_spread=0.02,
    )


@pytest.mark.parametrize(("group", "tier"), [(1, 0), (4, 0), (5, 1), (68, 1), (69, 2), (10**6, 2)])
def test_a_group_belongs_to_the_innermost_tier_that_holds_it(tmp_path: Path, group: int, tier: int) -> None:
    assert load_cluster(write(tmp_path, ABCI)).tier_of(group) == tier


def test_a_cluster_without_tiers_is_one_device() -> None:
    alone = Cluster("here", "cpu")
    assert alone.devices == 1
    assert alone.tier_of(1) == 0
    with pytest.raises(OutOfRange, match="cluster 'here' has 1 device, not 2"):
        alone.tier_of(2)


def test_a_link_on_the_command_line_is_a_cluster_of_one_tier() -> None:
    cluster = Cluster.of_link("any", parse_link("9us, 50GB/s"), 8)
    assert cluster.tiers == (Tier("link", Link(9e-6, 50e9), 8),)
    with pytest.raises(OutOfRange, match="has 8 devices, not 9"):
        cluster.tier_of(9)
    with pytest.raises(OutOfRange, match="at least one device, not 0"):
        cluster.tier_of(0)


@pytest.mark.parametrize(
    "text", ["", "9us", "9us,50GB", "-9us,50GB/s", "9us,-50GB/s", "9us,0GB/s", "nan,1GB/s", "a,b,c"]
)
def test_links_that_cannot_be_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_link(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ((Tier("a", LINK), Tier("b", LINK)), "tier 'a' has no number of devices"),
        ((Tier("a", LINK, 4), Tier("b", LINK, 4)), "tier 'b' must hold more devices than the 4 of 'a'"),
        ((Tier("a", LINK, 4), Tier("a", LINK, 8)), "same name"),
    ],
)
def test_tiers_must_grow_outwards(tiers: tuple[Tier, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Cluster("c", "d", tiers)


NODE = "{name: node, devices: 4, link: {latency: 9us, bandwidth: 50GB/s}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the cluster is empty"),
        ("[1, 2]", "the cluster is a list"),
        ("a: b: c", "no YAML"),
        ("a: !!python/object:os.system {}", "no YAML"),
        ("tiers: &t [*t]\nname: n\ndevice: d", "aliases"),
        ("[" * 60000, "nested more than"),
        ("name: " + "9" * 5000, "no YAML that can be read"),
        ("name: n\nname: m", "'name' is written twice"),
        (f"name: n\ndevice: d\ntiers: [{{name: a, name: b}}, {NODE}]", "'name' is written twice"),
        (f"device: d\ntiers: [{NODE}]", "the cluster has no 'name'"),
        (f"name: 3\ndevice: d\ntiers: [{NODE}]", "'name' of the cluster is 3"),
        (f"name: n\ndevice:\ntiers: [{NODE}]", "'device' of the cluster is empty"),
        ("name: n\ndevice: d\ntiers: []", "the cluster has no tiers"),
        ("name: n\ndevice: d\ntiers: {}", "'tiers' of the cluster is a dict"),
        (f"name: n\ndevice: d\ncolour: red\ntiers: [{NODE}]", "unknown field 'colour'"),
        (f"name: n\ndevice: d\nmemory: 16\ntiers: [{NODE}]", "'memory' of the cluster is 16"),
        (f"name: n\ndevice: d\nmemory: 16GHz\ntiers: [{NODE}]", "'memory' of the cluster: '16GHz' is not a size"),
        (f"name: n\ndevice: d\nmemory: -1GiB\ntiers: [{NODE}]", "memory of a device is more than zero"),
        ("name: n\ndevice: d\ntiers: [7]", "tier 1 is 7"),
        ("name: n\ndevice: d\ntiers: [{name: a}]", "tier 'a' has no 'link'"),
        ("name: n\ndevice: d\ntiers: [{name: a, link: fast}]", "'link' of tier 'a' is 'fast'"),
        ("name: n\ndevice: d\ntiers: [{name: a, link: {latency: 9us}}]", "the link of tier 'a' has no 'bandwidth'"),
        ("name: n\ndevice: d\ntiers: [{name: a, link: {latency: 9, bandwidth: 1GB/s}}]", "'latency' of the link of"),
        ("name: n\ndevice: d\ntiers: [{name: a, link: {latency: -9us, bandwidth: 1GB/s}}]", "tier 'a': the latency"),
        ("name: n\ndevice: d\ntiers: [{name: a, link: {latency: 1us, bandwidth: 0GB/s}}]", "tier 'a': the bandwidth"),
        (f"name: n\ndevice: d\ntiers: [{NODE.replace('devices', 'devces')}]", "tier 'node' has an unknown field"),
        (f"name: n\ndevice: d\ntiers: [{NODE.replace('4', '-4')}]", "devices of tier 'node' are at least 1, not -4"),
        (f"name: n\ndevice: d\ntiers: [{NODE.replace('4', 'true')}]", "'devices' of tier 'node' is True"),
        (f"name: n\ndevice: d\ntiers: [{NODE.replace('4', '4, nodes: 2')}]", "counts both"),
        (f"name: n\ndevice: d\ntiers: [{NODE.replace('devices', 'nodes')}]", "counts 'nodes', but"),
        (f"name: n\ndevice: d\ntiers: [{NODE.replace('4', '4, oversubscription: .nan')}]", "is 1 to 1000000, not nan"),
        (f"name: n\ndevice: d\ntiers: [{NODE.replace('4', '4, nics_per_node: 0')}]", "nics_per_node of tier 'node'"),
        ("#" * (MAX_FILE_BYTES + 1), "larger than"),
    ],
)
def test_a_bad_cluster_file_is_said_in_one_line_that_names_file_and_field(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        load_cluster(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be read: No such file"):
        load_cluster(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(BadInput, match="no YAML"):
        load_cluster(binary)

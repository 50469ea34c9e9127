"""Profiles: figures, names, and one clear complaint for every broken file."""

import re

import pytest
import yaml

from planner.cluster.load import DEFAULT_HARDWARE, MAX_FILE_BYTES, data_directory, hardware, hardware_names
from planner.cluster.records import Cluster
from planner.errors import ProfileError, SpecError

GIB = 2**30
B3 = (data_directory("hardware_profiles") / "910b3.yaml").read_text()


# peak bf16 TFLOP/s, HBM GiB, usable GiB, HBM GB/s, devices a node, link GB/s, port GB/s
@pytest.mark.parametrize(
    ("name", "peak", "hbm", "usable", "hbm_rate", "per_node", "link", "port"),
    [
        ("910B1", 363.7, 64, 58, 1759, 8, 28, 25),
        ("910B2", 353.8944, 64, 58, 1759, 8, 28, 25),
        ("910B3", 294.912, 64, 58, 1759, 8, 28, 25),
        ("910B4", 245.8, 32, 29, 880, 8, 32, 25),
        ("910B4-64G", 245.8, 64, 58, 1759, 8, 28, 25),
        ("910C", 353.8944, 64, 58, 1759, 16, 196, 25),
        ("A100-80G", 312, 80, 79.15, 2039, 8, 300, 25),
        ("A100-PCIE", 312, 80, 79.15, 1935, 8, 32, 25),
        ("H100", 989, 80, 79.1, 3350, 8, 450, 50),
        ("B200", 2250, 180, 178.3, 8000, 8, 900, 50),
    ],
)
def test_figures(name, peak, hbm, usable, hbm_rate, per_node, link, port):
    h = hardware(name)
    assert h.device.peak("bfloat16") == pytest.approx(peak * 1e12)
    assert h.device.hbm_bytes == hbm * GIB
    assert h.device.usable_bytes == round(usable * GIB)
    assert h.device.hbm_bytes_per_s == hbm_rate * 1e9
    assert (h.devices_per_node, h.node.link_bytes_per_s, h.nic_bytes_per_s) == (per_node, link * 1e9, port * 1e9)


def test_cube_rule_gives_the_peaks():
    # cube cores x 8192 FLOP x clock
    assert hardware("910B3").device.peak("bfloat16") == pytest.approx(20 * 8192 * 1.80e9)
    assert hardware("910B2").device.peak("bfloat16") == pytest.approx(24 * 8192 * 1.80e9)
    assert hardware("910B1").device.peak("bfloat16") == pytest.approx(24 * 8192 * 1.85e9, rel=1e-4)


def test_910a_has_no_bfloat16_and_two_quads():
    a = hardware("910A")
    assert (a.node.kind, a.node.quad_size, a.node.bridge_bytes_per_s) == ("quads", 4, 20e9)
    assert (a.device.peak("float16"), a.nic_bytes_per_s) == (256e12, 12.5e9)
    with pytest.raises(
        ProfileError, match="910A has no matmul peak for bfloat16; legal compute types: float16, float32"
    ):
        a.device.peak("bfloat16")


def test_a3_is_a_superpod_of_768_dies():
    superpod = hardware("910C").superpod
    assert superpod is not None
    assert (superpod.devices, superpod.link_bytes_per_s) == (768, 196e9)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("910b3", "910B3"),
        ("800T A2", "910B3"),
        ("atlas-800t-a2", "910B3"),
        ("Ascend 910B Atlas 800T A2", "910B3"),
        ("900 A2 PODc", "910B2"),
        ("Ascend 910B Atlas 900 A2 PODc", "910B2"),
        ("a3", "910C"),
        ("910c", "910C"),
        ("Ascend 910A Atlas 800", "910A"),
        ("910b4_64g", "910B4-64G"),
        ("NVIDIA A100-80GB", "A100-80G"),
        ("A100-80GB-PCIe 8 GPU, one node, PCIe", "A100-PCIE"),
        ("NVIDIA H100", "H100"),
        ("B200-SXM 8 GPU, one node, NVLink 900GB/s", "B200"),
    ],
)
def test_product_names(spelling, name):
    assert hardware(spelling).name == name


def test_default_is_atlas_800t_a2():
    assert hardware().name == DEFAULT_HARDWARE == "910B3"


def test_names_and_aliases_are_unique():
    plain = [re.sub("[^a-z0-9]", "", n.lower()) for h in map(hardware, hardware_names()) for n in {h.name, *h.aliases}]
    owners = {}
    for h in map(hardware, hardware_names()):
        for alias in (h.name, *h.aliases):
            assert owners.setdefault(re.sub("[^a-z0-9]", "", alias.lower()), h.name) == h.name
    assert len(plain) > 60


def test_every_number_names_kind_and_source():
    for name in hardware_names():
        sources = hardware(name).sources
        assert len(sources) >= 13
        assert all(re.fullmatch(r"(datasheet|measured|derived): .{6,}", text) for text in sources.values()), name


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("910b", "910B1, 910B2, 910B3, 910B4, 910B4-64G"), ("h200", "H100"), ("atlas 900 a2 pod", "910B2")],
)
def test_unknown_names_list_the_nearest(name, nearest):
    with pytest.raises(ProfileError, match=f"hardware '{name}' is not known. Nearest: {nearest}.*Legal: 910A, 910B1"):
        hardware(name)


@pytest.mark.parametrize("name", ["", "  ", "xyz", "910X" * 1000])
def test_hopeless_names_list_all(name):
    with pytest.raises(ProfileError, match="Legal: 910A, 910B1, .*or the path of a .yaml profile"):
        hardware(name)


def changed(old, new):
    assert B3.count(old) == 1, old
    return B3.replace(old, new)


def line(key):
    return next(text for text in B3.splitlines() if text.strip().startswith(f"{key}:"))


LINK = "{value: 28.0, unit: GB/s,"
# what is wrong: text taken out, text put in, what the message must hold
EDITS = {
    "unknown key": ("  link:", "  lnk:", r"unknown key 'node.lnk', did you mean 'link'\?; legal in 'node': fabric, "),
    "unknown fact": ("{value: 28.0,", "{val: 28.0,", r"unknown key 'node.link.val', did you mean 'value'\?"),
    "missing key": (line("memory_usable"), "", "'device.memory_usable' is missing; write memory_usable: {value: "),
    "missing unit": (LINK, "{value: 28.0,", "'node.link.unit' is missing; write unit: one of B/s, MB/s"),
    "wrong unit": (LINK, "{value: 28.0, unit: GiB,", "'node.link.unit' is 'GiB'; legal for a bandwidth: B/s, "),
    "unit as number": (LINK, "{value: 28.0, unit: 9,", "'node.link.unit' is 9; legal for a bandwidth: B/s, "),
    "unit as list": (LINK, "{value: 28.0, unit: [GB/s],", r"'node.link.unit' is \['GB/s'\]; legal for a bandwidth"),
    "GB for memory": ("58, unit: GiB", "58, unit: GB", r"'GB' \(GB is ambiguous for memory\); legal for a size: B, "),
    "unit with value": ("{value: 28.0,", "{value: 28 GB/s,", "must be a number without unit, not '28 GB/s'"),
    "true": ("{value: 28.0,", "{value: true,", "'node.link.value' must be a number without unit, not True"),
    "not finite": ("{value: 28.0,", "{value: .nan,", "'node.link.value' must be a number"),
    "negative": ("{value: 28.0,", "{value: -28.0,", "'node.link.value' is -28; it must be above 0"),
    "zero": ("{value: 28.0,", "{value: 0,", "'node.link.value' is 0; it must be above 0"),
    "no source": ("kind: derived, source", "kind: derived, sauce", "_bfloat16.sauce', did you mean 'source'"),
    "wrong kind": ("kind: derived", "kind: guess", "kind' is 'guess'; legal: datasheet, measured, derived"),
    "kind as list": ("kind: derived", "kind: []", r"kind' is \[\]; legal: datasheet, measured, derived"),
    "bare number": (line("link"), "  link: 28", "'node.link' must be a mapping of keys to values, not 28"),
    "half a device": ("{value: 8,", "{value: 7.5,", "'node.devices.value' is 7.5; it must be a whole number"),
    "usable over visible": ("{value: 58,", "{value: 63,", "memory_usable <= memory_visible <= memory"),
    "wrong fabric": ("fabric: mesh", "fabric: mash", r"'node.fabric' is 'mash', did you mean 'mesh'\?; legal: mesh"),
    "quads, no quad": ("fabric: mesh", "fabric: quads", "'node.quad' belongs to fabric quads and only there"),
    "wrong vendor": ("vendor: ascend", "vendor: huawei", "'vendor' is 'huawei'; legal: ascend, nvidia, cpu"),
    "name as number": ("name: 910B3", "name: 910", "'name' must be a text, not 910; put it in quotes"),
    "alias as number": ('  - "800T"', "  - 800", "'aliases' must be a list of texts"),
}
# what is wrong: whole file, what the message must hold
FILES = {
    "unknown section": (B3 + "extra: 1\n", "unknown key 'extra'; legal in the file: name, aliases"),
    "missing section": (B3.partition("network:")[0], "key 'network' is missing"),
    "twice": (B3 + "network: {}\n", "key 'network' stands twice, line "),
    "truncated": (B3[: B3.index("memory_visible") + 40], "is not readable YAML: line "),
    "tab": (B3.replace("  fabric", "\tfabric"), "is not readable YAML: line "),
    "list": ("- 1\n- 2\n", r"the file must be a mapping of keys to values, not \[1, 2\]"),
    "text": ("hello", "the file must be a mapping of keys to values, not 'hello'"),
    "empty": ("# nothing\n", "is empty"),
    "two documents": (B3 + "---\n" + B3, "is not readable YAML: line "),
    "object": ("name: !!python/object/apply:os.system ['true']\n", "is not readable YAML: line 1"),
    "list as key": ("? [1, 2]\n: 3\n", "is not readable YAML: line 1"),
    "deep": ("a: " + "[" * 5000, "is not readable YAML"),
}
BROKEN = {**{why: (changed(old, new), message) for why, (old, new, message) in EDITS.items()}, **FILES}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_profiles_name_file_key_and_rule(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message) as caught:
        hardware(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_superpods_hold_whole_nodes(tmp_path):
    text = (data_directory("hardware_profiles") / "910c.yaml").read_text()
    (tmp_path / "x.yaml").write_text(text.replace("{value: 768,", "{value: 100,"))
    with pytest.raises(ProfileError, match="'superpod.devices' 100 is not a multiple of 'node.devices' 16"):
        hardware(tmp_path / "x.yaml")


def test_unreadable_files(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        hardware(str(tmp_path / "none.yaml"))
    with pytest.raises(ProfileError, match="is a folder"):
        hardware(tmp_path)
    (tmp_path / "big.yaml").write_text("#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ProfileError, match=f"has {MAX_FILE_BYTES + 1} bytes; legal: at most"):
        hardware(tmp_path / "big.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9t\xe9\n")
    with pytest.raises(ProfileError, match="is not UTF-8 text"):
        hardware(tmp_path / "latin.yaml")
    (tmp_path / "zero.yaml").write_bytes(B3.encode() + b"\0")
    with pytest.raises(ProfileError, match="is not readable YAML"):
        hardware(tmp_path / "zero.yaml")


def test_a_nest_of_aliases_ends_in_a_message(tmp_path):
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)
    ]
    (tmp_path / "bomb.yaml").write_text("\n".join(levels))
    with pytest.raises(ProfileError, match="unknown key 'a0'"):
        hardware(tmp_path / "bomb.yaml")


def test_own_profile_by_path_with_byte_order_mark(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(changed("name: 910B3", "name: lab").replace("{value: 25.0,", "{value: 12.5,"), encoding="utf-8-sig")
    own = hardware(str(path))
    assert (own.name, own.nic_bytes_per_s, own.node) == ("lab", 12.5e9, hardware("910B3").node)


def test_units_are_converted(tmp_path):
    text = changed("{value: 25.0, unit: GB/s", "{value: 200, unit: Gbit/s").replace(
        "1759.0, unit: GB/s", "1.759, unit: TB/s"
    )
    (tmp_path / "x.yaml").write_text(text)
    own = hardware(tmp_path / "x.yaml")
    assert own.nic_bytes_per_s == 25e9
    assert own.device.hbm_bytes_per_s == pytest.approx(1759e9)


def test_heads_of_shipped_files_hold_names_and_aliases():
    for path in data_directory("hardware_profiles").glob("*.yaml"):
        data = yaml.safe_load(path.read_text())
        assert list(data)[:3] == ["name", "aliases", "vendor"], path.name
        assert hardware(data["name"]).aliases == tuple(data["aliases"])


@pytest.mark.parametrize(("cards", "legal"), [(1, True), (6, True), (8, True), (64, True), (63, False), (12, False)])
def test_cards_fill_whole_nodes(cards, legal):
    if legal:
        assert Cluster(hardware=hardware(), devices=cards).nodes == -(-cards // 8)
    else:
        with pytest.raises(SpecError, match="nearest legal: "):
            Cluster(hardware=hardware(), devices=cards)


@pytest.mark.parametrize("cards", ["64", 64.5, True, 0, -8, None])
def test_cards_are_a_positive_whole_number(cards):
    with pytest.raises(SpecError, match="must be a positive whole number"):
        Cluster(hardware=hardware(), devices=cards)

"""Huge pages: the right regions are moved, no byte changes, and nothing happens where the system cannot."""

from __future__ import annotations

import pytest
import torch

from decoding.engines import huge_pages
from decoding.engines.huge_pages import Region, is_worth_moving, read_regions, use_huge_pages

MB = 1 << 20
SMAPS = """\
7f0000000000-7f0002000000 rw-p 00000000 00:00 0
Size:              32768 kB
Rss:               30000 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac
7f1000000000-7f1002000000 r--p 00000000 fe:00 1234                       /weights.safetensors
Rss:               32768 kB
AnonHugePages:         0 kB
7f2000000000-7f2002000000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
Rss:               32768 kB
AnonHugePages:         0 kB
55a000000000-55a004000000 rw-p 00000000 00:00 0                          [heap]
Rss:               65000 kB
AnonHugePages:     40960 kB
"""


def test_only_private_writable_memory_without_a_file_is_read():
    assert list(read_regions(SMAPS)) == [
        Region(0x7F0000000000, 0x7F0002000000, 30000 << 10, 0),
        Region(0x55A000000000, 0x55A004000000, 65000 << 10, 40960 << 10),
    ]


@pytest.mark.parametrize(
    ("size", "used", "huge", "worth"),
    [
        (64 * MB, 64 * MB, 0, True),
        (64 * MB, 64 * MB, 32 * MB, True),
        (64 * MB, 64 * MB, 62 * MB, False),  # it has them
        (64 * MB, 8 * MB, 0, False),  # a cache that is hardly filled would take all its memory
        (2 * MB, 2 * MB, 0, False),
    ],
)
def test_large_regions_in_use_are_moved(size, used, huge, worth):
    assert is_worth_moving(Region(0, size, used, huge)) is worth


def huge_bytes_at(address: int) -> int:
    regions = read_regions(huge_pages._MAPS.read_text())
    return next((region.huge for region in regions if region.start <= address < region.end), 0)


def test_weights_move_and_keep_their_bytes_or_the_log_says_why_not(caplog):
    weights = torch.arange(8 * MB, dtype=torch.int32)
    with caplog.at_level("INFO", logger=huge_pages.__name__):
        use_huge_pages()
    assert torch.equal(weights, torch.arange(8 * MB, dtype=torch.int32))
    assert "no huge pages" in caplog.text or huge_bytes_at(weights.data_ptr() + 16 * MB) > 0


def test_a_system_without_such_a_list_of_regions_goes_on(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(huge_pages, "_MAPS", tmp_path / "missing")
    with caplog.at_level("INFO", logger=huge_pages.__name__):
        use_huge_pages()
    assert "no huge pages" in caplog.text and "missing" in caplog.text

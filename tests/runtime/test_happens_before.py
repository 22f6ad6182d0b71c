"""Logs of a few lines, and the races in them."""

import pytest

from tests.support.happens_before import races

WRITE, READ = "touch s1 w 0x100 16 made", "touch s2 r 0x100 16 read"
OUT, FREED = "copy s2 d2h 0x900<-0x100 16", "touch s1 w 0x100 16 next"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        pytest.param([WRITE, READ], 1, id="nothing orders two streams"),
        pytest.param([WRITE, "touch s1 r 0x100 16 read"], 0, id="a stream is ordered"),
        pytest.param([WRITE, "record s1 e", "wait s2 e", READ], 0, id="an event orders"),
        pytest.param(["record s1 e", WRITE, "wait s2 e", READ], 1, id="recorded too early"),
        pytest.param([WRITE, "wait s2 e", "record s1 e", READ], 1, id="waited for before it was recorded"),
        pytest.param([WRITE, "record s1 e", "wait s3 e", READ], 1, id="another stream waits"),
        pytest.param(
            [WRITE, "record s1 e", "wait s3 e", "record s3 f", "wait s2 f", READ], 0, id="one event behind another"
        ),
        pytest.param([WRITE, "record s1 e", "hostwait e", READ], 0, id="the host waits"),
        pytest.param([WRITE, "hostsync s1", READ], 0, id="the host waits for the stream"),
        pytest.param([WRITE, "devicesync", READ], 0, id="the host waits for all"),
        pytest.param(["touch s1 r 0x100 16 a", READ], 0, id="two reads"),
        pytest.param([WRITE, "touch s2 r 0x110 16 read"], 0, id="other bytes"),
        pytest.param([WRITE, "touch s2 r 0x10f 16 read"], 1, id="one byte in common"),
        pytest.param([WRITE, "record s1 e", "wait s2 e", OUT, FREED], 1, id="written while it is copied"),
        pytest.param([WRITE, "record s1 e", "wait s2 e", OUT, "record s2 f", "wait s1 f", FREED], 0, id="then not"),
        pytest.param([OUT, "host r 0x900 16 store"], 1, id="the host reads what is still copied"),
        pytest.param([OUT, "record s2 f", "hostwait f", "host r 0x900 16 store"], 0, id="the host has waited"),
        pytest.param(["copy s2 d2h-pageable 0x900<-0x100 16", "host r 0x900 16 read"], 0, id="a copy waits itself"),
        pytest.param(["host w 0x900 16 load", "copy s2 h2d 0x100<-0x900 16"], 0, id="work begins after its launch"),
        pytest.param(["memset s1 0x100 16", READ], 1, id="memory that is filled"),
    ],
)
def test_races(lines, found):
    assert len(races(lines)) == found

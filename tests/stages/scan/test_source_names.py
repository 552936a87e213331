"""What names of files say, by what cameras write and downloads leave."""

import pytest

from curator.stages.scan.source_names import (
    OTHER_SUFFIXES,
    VIDEO_SUFFIXES,
    NameKind,
    name_kind,
)

OF_REPORT = "out/report/previews/0123456789abcdef01234567.mp4"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            NameKind.OTHER,
            "a.json b.JPG c.tar d.tar.gz e.srt f.wav g.parquet s3://b/x.md 00000.CPI 00000.MPL "
            "INDEX.BDM MOVIEOBJ.BDM a.BIM b.SMI live.m3u8 stream.mpd GX01.THM GL01.LRV DJI_1.LRF "
            "DJI_1.SRT track.gpx IMG_1.AAE C0001M01.XML VIDEO_TS.IFO VTS_01_0.BUP PRIVATE.PPN "
            "Thumbs.db desktop.ini x.mp4.part x.crdownload x.mp4.aria2 v.info.json v.nfo v.sha256 "
            "README LICENSE license-MIT COPYING SHA256SUMS _SUCCESS s3://b/set_$folder$ "
            f"{OF_REPORT} /films/{OF_REPORT} s3://b/{OF_REPORT}",
        ),
        (
            NameKind.SOURCE,
            "a.mp4 README.mp4 c.gif e.ts g.3gp 00000.MTS M2U00001.MPG VTS_01_1.VOB "
            "C0001.MXF GX010001.360 VID.insv seg.m4s A001.R3D A.braw A.CRM "
            "A.rmf A.ari A.arx A.cine A.nev A.MLV A.mcraw A.krw "
            "a.mjpeg a.mjpg "
            f"out/report/previews/tour.mp4 my{OF_REPORT}.mp4",
        ),
        (NameKind.NO_SUFFIX, "d wav .json/x 5f2c9a s3://b/0a/1b2c CREDITS part-00000"),
        (NameKind.UNKNOWN, "b.m4a f.ogg AVSEQ01.DAT MOV001.MOD x.NAV flight.MRK talk.5 a.bin"),
    ],
)
def test_names(kind: NameKind, names: str) -> None:
    wrong = [name for name in names.split() if name_kind(name) is not kind]
    assert wrong == []


def test_no_suffix_is_of_both_kinds() -> None:
    assert VIDEO_SUFFIXES.isdisjoint(OTHER_SUFFIXES)

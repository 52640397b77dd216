"""Every heuristic of the C++ emitter: named, in one place, each with its reason."""

from __future__ import annotations

from collections.abc import Collection

import torch

from fusec.machine import current_machine

# Longer than this, a value gets a line of its own: two operators and their operands.
INLINE_WIDTH = 40
# The same for one that is stored and nothing else: a line, less where it is stored.
STORED_WIDTH = 70

# Elements that a float sum adds up before it goes into a double: over 16 lanes that is 256
# additions each, so the rounding error stays near that of eager's cascade, and the conversion
# is paid once in 4096.
SUM_CHUNK = 4096

# Waking a team of threads takes a few microseconds; below this many elements (a float32 read
# and written each: 256 KiB, about 10 us for one thread) it does not pay.
GRAIN = 32768
# The same for a body with an exponential or the like, which takes several times as long.
GRAIN_EXPENSIVE = 8192
GRAINS = (4096, 8192, 16384, 32768, 65536)

# Rows that a thread takes at a time. A few keep neighbors in one cache and one page with one
# thread; many leave the last thread waiting when rows take unequal time.
ROWS = 8
ROWS_TRIED = (1, 4, 8, 32, 128)
# With fewer rows than this, chunks could leave threads without any.
ROWS_WORTH_CHUNKS = 512


def is_short_window(elements: int | None) -> bool:
    """Whether windows of so many elements are best reduced side by side."""
    return elements is not None and elements <= SHORT_WINDOW


def grain(operations: int) -> int:
    """Return how many elements make a team of threads worth while.

    Args:
        operations: Cost of one element, in additions.
    """
    return GRAIN_EXPENSIVE if operations >= 20 else GRAIN


# What a thread may keep of a row between passes: with the row itself it stays in a second-level
# cache (1 to 2 MiB), and it fits on any thread's stack.
SCRATCH_BYTES = 256 * 1024
# Below this cost (an exponential is 10) a value is cheaper to compute again than to keep.
KEEP_COST = 8
# What a step of a scan counts: its loop takes one element at a time, four cycles after the last.
SCAN_COST = 16
# Elements of a row that go through a scan at a time, between vector loops: their values, in a few
# arrays, stay in the first-level cache.
SCAN_BLOCK = 512
# What is cheaper than this is done in the loop of the scan, rather than through an array.
SCAN_BLOCK_COST = 4
# What converting to or from half precision counts, which takes several instructions.
HALF_COST = 4

# Elements among which argmax looks for the extreme before it looks for its position: short
# enough to be in the first-level cache when the search runs over it again.
INDEX_CHUNK = 1024


def may_keep_rows(points: int | None) -> bool:
    """Whether values of a whole row can be kept between passes.

    Args:
        points: Elements of a row; None where it is not known when the kernel is written.
    """
    return points is not None and 0 < points * 4 <= SCRATCH_BYTES


def worth_keeping(cost: int) -> bool:
    """Whether a value should be kept rather than computed again.

    Args:
        cost: What computing it takes, in additions.
    """
    return cost >= KEEP_COST


# -- asking the memory ahead -------------------------------------------------------------------

# Elements between two requests: a few cache lines, so that a request costs little beside the
# arithmetic on them, and few enough that the requests of several tensors do not queue.
LINE = 64
# How far ahead, in elements. 2 KiB of float32 is what a core reads in about 0.2 us, twice the
# latency of memory; on the processors tried, half and twice as far were as good.
PREFETCH_DISTANCE = 512
# A buffer that is smaller stays in the second-level cache by itself.
SMALL_BUFFER = 256 * 1024
# A kernel that reads and writes less in all finds everything there from its last run.
WORTH_ASKING = 1 << 20
# A core has ten to sixteen reads under way at a time.
MOST_STREAMS = 8
# Elements of a row that stays in the cache from one pass to the next.
ROW_IN_CACHE = 32768
# Additions an element up to which a pass over a row waits for the memory, not for arithmetic.
WAITING_COST = 8
# Bytes of a row from which the next one is asked for into the second-level cache: with the row at
# hand and its results it would fill the first (32 to 48 KiB). Of rows of 4 KiB the mean square took
# 1.3 times as long so with AVX-512.
FAR_ROW = 8192
# Additions an element up to which a pass that only reads keeps its window on the reads to come.
READING_COST = 8
# Bytes of a block's running results where nothing is asked for: with more, they leave registers.
QUIET_LINE = 128


def gathers_quickly(itemsize: int) -> bool:
    """Whether elements at places that a table has are best read as vectors.

    On a Xeon (Sapphire Rapids), one thread, 700 columns of 1000 x 512 took 0.38 ms one at a time,
    0.22 as vectors of AVX-512 and 0.26 of AVX2, upsampling of rows by two 0.81, 0.48 and 0.50.  An
    AMD EPYC reads them one at a time in either case.

    Args:
        itemsize: Bytes of an element; nothing gathers halves.
    """
    machine = current_machine()
    return machine.gathers and machine.isa in ("avx2", "avx512") and itemsize in (4, 8)


def hardware_prefetches(cost: int) -> bool:
    """Whether the processor fetches what a long reduction reads sooner than requests would.

    Sums of (w * x + b).relu() over 8 and 16 million elements on an AMD EPYC with one thread, with
    AVX-512 and with AVX2 code: of one large input 0.60 and 0.87 of the time in float64 without
    requests, 0.82 and 0.93 in float32; of three inputs 1.02 and 0.87, 1.02 and 0.96. Other
    makers' processors were not tried.

    Args:
        cost: What an element takes, in additions.
    """
    return current_machine().amd and cost <= READING_COST


def leaves_time(cost: int) -> bool:
    """Whether the passes over a row have so little arithmetic that it matters which of them asks.

    With the next row asked for in a pass that finds its own in the cache, and results asked for a
    few lines ahead where they are written, rather than both a row ahead with the most arithmetic:
    instance norm of rows of 1,024 to 8,192 took 0.4 to 0.8 of the time, layer norm 0.75 to 1, the
    mean square 0.9 to 1 (EPYC, AVX-512 and AVX2 code), group norm 0.85 to 0.95 on a Xeon, with one
    thread and with four. Group norm of loops of 64 to 192 took 0.55 to 0.9 without any request.
    Softmax and what else has an exponential took 1.05 to 1.1 of the time so.

    Args:
        cost: What an element of the pass with the most arithmetic takes, in additions.
    """
    return cost <= WAITING_COST


def reads_well_alone(kind: str, dtype: torch.dtype) -> bool:
    """Whether a reduction's lanes are as fast where nothing is asked for.

    Largest elements of float64 took 1.1 to 2.2 times as long, whose flags for NaN are of another
    width, positions of them 2.8 to 3.9.

    Args:
        kind: The reduction's.
        dtype: Likewise.
    """
    if kind == "sum":
        return dtype in (torch.float32, torch.float64)
    return kind in ("max", "min") and dtype == torch.float32


def quiet_line(itemsize: int) -> int:
    """Return the elements of a block that asks for nothing, of which lines are multiples.

    Args:
        itemsize: Bytes of an element of the widest running result.
    """
    return LINE if itemsize <= 4 else min(LINE, QUIET_LINE // itemsize)


# Additions that finding the place of a row may take to be done twice, a row ahead. A row of an
# embedding that was asked for while the one before was normalized took 0.83 of the time.
NEXT_ROW_COST = 16
# Shorter loops than this are not cut into blocks; their requests stand above them.
MIN_BLOCKED = 256


def read_as_floats(kinds: Collection[str]) -> tuple[torch.dtype, ...]:
    """Return the types of halves that a pass over a short row converts beforehand.

    Sums of 128 elements of bfloat16 took 0.75 of the time so, layer norm 0.8; maxima 1.35.

    Args:
        kinds: The pass's reductions.
    """
    both = "sum" in kinds
    return (torch.float16, torch.bfloat16) if both else (torch.float16,)


def whole_vectors(length: int) -> int:
    """Return ``length`` rounded up to vectors of 8 elements."""
    return (length + 7) // 8 * 8


def worth_staging(length: int, dtypes: Collection[torch.dtype]) -> bool:
    """Whether halves of a row that is no block are converted into an array and from one.

    In the loop float16 takes a dozen integer operations each way: sums of neighbors in rows of 8
    took 0.14 of the time, of 14 0.6, of 56 to 200 0.14 to 0.3. bfloat16 is a shift to read and
    some more to write: 1.6 to 2.7 times the time in rows of 16 and 28, 0.85 to 1 from 56 on.

    Args:
        length: Elements of the row.
        dtypes: The types of what would go through arrays.
    """
    if not dtypes:
        return False
    return 8 <= length < MIN_BLOCKED and (torch.float16 in dtypes or length >= 48)


def has_half_vectors() -> bool:
    """Whether the processor converts float16 in vectors.

    Columns of float16 whose elements go through an array took 0.6 of the time with AVX-512, and a
    quarter with AVX2 (sums and maxima over 4,096 rows, one thread).
    """
    return current_machine().isa in ("avx512", "avx2")


def has_fma() -> bool:
    """Whether the processor multiplies and adds in one instruction; SSE2 alone does not."""
    return current_machine().isa != "sse2"


# -- writing past the caches -------------------------------------------------------------------

CACHE_LINE = 64  # bytes


def last_cache() -> int:
    """Return the bytes of the last cache before the memory."""
    return current_machine().last_cache


def can_stream() -> bool:
    """Whether the processor has stores past its caches that the kernels know."""
    return current_machine().streams


# Operations a byte from which a kernel's time is no longer the memory's. With two threads of an
# EPYC, layer norm (0.9) took 0.73 of the time past the caches, AdamW (0.7) 0.72, swiglu (1.4) 0.91;
# gelu (1.6) 1.05 to 1.25, log-softmax (1.8) 1.08, a chain of tanh, sigmoid and log (5.8) 1.11.
STREAMED_OPERATIONS = 1.5
# The share of what is moved that a result has at least.
STREAMED_SHARE = 1 / 8


def worth_streaming(written: int, moved: int, operations: int) -> bool:
    """Whether a result should be written past the caches.

    A kernel that adds one and moves 64 MiB into 64 MiB takes 0.7 of the time so, 16 into 16
    between other work 0.8, and by itself in a loop as long (the last cache holds 32); 4 into 4 in a
    loop takes twice as long.

    Args:
        written: Bytes of the result.
        moved: Bytes that the kernel reads and writes in all.
        operations: Arithmetic operations of the kernel.
    """
    if not can_stream() or moved < last_cache() or written < STREAMED_SHARE * moved:
        return False
    return operations <= STREAMED_OPERATIONS * moved


# -- columns ----------------------------------------------------------------------------------

# Columns that are reduced side by side: 4 KiB of float, one page of a row, which is what the
# hardware's prefetcher follows; the running results stay in the first-level cache. Narrow tiles
# that would stay in the second-level cache from pass to pass do not: columns lie a power of two
# apart more often than not, so a few sets of the cache would have to hold them all.
COLUMNS = 1024
# The same for scans: their rows cannot be shared out, so threads have only the tiles to share.
SCAN_COLUMNS = 256
COLUMN_CHOICES = (64, 128, 256, 512, 1024, 2048)
# Fewer columns than half a vector are not worth it where something lies along the rows.
LEAST_COLUMNS = 8
# Windows that overlap are contiguous both ways: from one element to the next, and from one window
# to the next.  Up to this many elements, windows side by side fill more vectors: sums of windows of
# 5 took 1.4 ms one after the other where eager took 0.66.
SHORT_WINDOW = 64
# What an axis of which nobody knows the length counts, where others are known.
UNKNOWN_EXTENT = 64
# Rows that a column's float sum adds up before they go into a double.
ROW_CHUNK = 512
# Units of work that a loop over tiles should have before it is split over the rows as well:
# enough to keep many cores busy.
UNITS = 16
# Pieces of a long reduction that threads share. Fixed, so that the result does not depend on
# the number of threads; more pieces would balance better and cost more to combine.
PIECES = 32
PIECE_CHOICES = (8, 16, 32, 64, 128)


# Rows of at most so many elements are reduced side by side. Softmax and layer norm were 2 to 3.5
# times as fast so with 8 elements, 1.2 to 1.7 times with 32, and no faster with 64, where the
# ends of the reductions weigh little and turning over costs as much as it saves.
TURNED_POINTS = 32
# How many rows there must be for a few vectors of them, and additions an element for turning it
# over (about two, there and back) to pay.
TURNED_LEAST_ROWS = 64
TURNED_COST = 4
# Elements of a tile that is turned over: 16 KiB of float, half of a first-level cache.
TURNED_TILE = 4096
TURNED_ROWS = 64
TURNED_ROWS_LEAST = 16
TURNED_ROWS_CHOICES = (16, 32, 64, 128, 256)


def may_turn_rows(points: int, rows: int | None, operations: int) -> bool:
    """Whether short rows should be reduced side by side.

    Args:
        points: Elements of a row.
        rows: How many there are in a line; None where it is not known.
        operations: Cost of an element, in additions.
    """
    if not 2 <= points <= TURNED_POINTS or (rows is not None and rows < TURNED_LEAST_ROWS):
        return False
    return operations >= TURNED_COST


def turned_rows(points: int) -> int:
    """Return how many rows of ``points`` elements are reduced side by side."""
    fitting = 1 << (TURNED_TILE // points).bit_length() - 1
    return max(TURNED_ROWS_LEAST, min(TURNED_ROWS, fitting))


# Rows that are not worth cutting into pieces: threads share narrower tiles of columns instead, as
# narrow as this.
UNCUT_ROWS = 4 * PIECES
NARROW_COLUMNS = 256


def tile_columns(columns: int | None, rows: int | None) -> int:
    """Return how many columns are reduced side by side.

    Args:
        columns: How many there are in a line, None where it is not known.
        rows: What each reduces, likewise.
    """
    width = COLUMNS
    if columns is not None and rows is not None and rows <= UNCUT_ROWS:
        while width > NARROW_COLUMNS and columns < UNITS * width:
            width //= 2
    return width


def split_rows(units: int | None, work: int | None, rows: int | None = None) -> bool:
    """Whether threads should share the rows of a reduction rather than its outer points.

    Args:
        units: Outer points (or tiles of them), None where it is not known.
        work: Elements in all, likewise.
        rows: What each result reduces, likewise.
    """
    if rows is not None and rows <= UNCUT_ROWS:
        return False
    return units is not None and units < UNITS and (work is None or work >= 2 * GRAIN)


# -- pointwise --------------------------------------------------------------------------------

# Elements of a row that a thread takes at a time where there are too few rows to share out.
BLOCK = 8192
BLOCK_CHOICES = (2048, 4096, 8192, 16384, 32768)
# Vectors that one turn of an innermost loop computes. The processor looks several turns ahead by
# itself, so more than one has never measured faster; it is there to be tried.
UNROLL = 1
UNROLL_CHOICES = (1, 2, 4, 8)
# Elements of a row of updates that a thread takes at least: a few cache lines, which the prefetcher
# follows; a thread reads the index of every row, whatever its share of the row. More where there
# are few threads: whole rows of 512 elements took half the time of quarters, one after the other.
UPDATE_BLOCK = 128
# What a larger share is rounded to: a cache line of float32, which two threads should not share.
UPDATE_STEP = 16
UPDATE_BLOCKS = (32, 64, 128, 256, 512, 1024)
# A loop of updates that is shorter than this leaves most threads without a share.
UPDATE_SHARES = 4
# Additions that a row's values must be worth to be kept in a table for all rows (a square root and
# a division are), how many rows there must be, and how long a row may be for the table to stay in
# the first-level cache.
TABLE_COST = 8
# What a conversion from or to an integer counts there: positions have 64 bits, for which AVX2 has
# none.
CONVERSION_COST = 3
# And what a check of an index counts: two comparisons, a choice, and the mark of a failure, which
# is carried from one to the next. Columns of 2,048 rows at 512 places took 0.46 of the time so.
CHECK_COST = 8
# And a position that is found by division, in 64 bits: a product of 128.
DIVISION_COST = 8
TABLE_ROWS = 16
TABLE_LENGTH = 4096


def wide_marks() -> bool:
    """Return whether conditions in tables are as long as numbers: only AVX-512 has masks of bits.

    Reading an image at places took 0.45 ms where bytes take 0.49 with AVX2 code; with AVX-512 it is
    0.45 where bytes take 0.41.
    """
    return current_machine().isa != "avx512"


# Rows that share values have these computed once a block if there are this many rows, and if they
# are worth this many additions for each value to be kept: places in an image, for all channels. A
# block has so many elements at most, and its tables leave room in the first-level cache.
SHARED_ROWS = 3
SHARED_COST = 4
SHARED_LENGTH = 256
SHARED_BYTES = 24 * 1024
# Rows of values that are kept while what they are computed from stays the same: at most so many
# bytes, which stay in the first-level cache beside a row of the result; for at most so many rows,
# which are looked through when the kernel is written; and where at most this share of the rows
# finds others than the row before it. Upsampling by two has a half.
REPEATED_BYTES = 16 * 1024
REPEATED_ROWS = 8192
REPEATED_SHARE = 0.7
# Rows that are taken apart into even and odd elements: at least half a vector of results, and as
# long as the arrays of a few rows stay in the first-level cache.
LEAST_DEINTERLEAVED = 8
MOST_DEINTERLEAVED = 2048
DEINTERLEAVED_BYTES = 16 * 1024
# Elements of a row of a window are not further from each other.
DEINTERLEAVED_GAP = 4
# Results at the ends of a row that may be computed with the others first, to no avail, so that the
# row is one of whole vectors.
ENDS = 4
# A vector of elements from all over costs more than as many single reads; a loop is vectorized all
# the same if it has this much arithmetic, in additions, for each of them.
GATHER_COST = 4
# What one element at a time is a branch that is taken as often as not: relu of a picture of twice
# the size took three times as long so as with its elements gathered into vectors.
BRANCHES = ("where", "maximum", "minimum")
# Additions an argument of a sine may take where it is computed twice, first to see whether it is
# moderate: the quick form saves about forty.
ANGLE_COST = 8
# What an operation of a loop must cost, in additions, for four vectors of it to go side by side:
# an exponential. Sums of sines and powers took two thirds of the time so, softmax of half precision
# three quarters, gelu nine tenths; what only adds and multiplies waits for the memory.
INTERLEAVE_COST = 10
# Both sides of a tile that is turned over are a few cache lines: every line that is read is used
# up at once, what is read lies in few pages, and what is written is a stream. 64 x 64 floats beside
# 16 x 512: a transpose and an addition 3.0 ms instead of 3.2, channels from the last place and back
# 0.10 instead of 0.13, of bfloat16 0.10 instead of 0.26.
# Lines a multiple of a page apart share few places in the cache: twice as long stretches of them
# are read one after the other then (the addition 2.8 ms instead of 3.7 on one thread).
TILE_BYTES = 256
PAGE = 4096
TILE_CHOICES = (8, 16, 32, 64, 128, 256, 512)
# Shorter axes than this are not worth turning a tile over for.
MIN_TILE = 8
# Neighbors that the innermost loop has at least where an axis that is several in one is split: half
# a vector. Patches of 16 x 16 of a picture took 0.13 of the time so.
LEAST_SPLIT = 8
# Loops that one loop may be split into where conditions on its variable change.
MAX_RANGES = 8


def worth_deinterleaving(length: int | None) -> bool:
    """Whether a row of which every second element is taken is put apart first.

    Windows of 3 x 3 that move by two took 0.35 to 0.6 of the time so with 16, 24, 32, 48, 64 or
    256 results in a row, 0.85 to 1 with 12, 20, 28, 44 and 60; 1.05 to 1.4 with 13, 26, 31, 47, 97
    and 127, whose single elements at the end are more work so (and 0.6 with 258 and 500).

    Args:
        length: Results of a row; None where it is not known.
    """
    if length is None or not LEAST_DEINTERLEAVED <= length <= MOST_DEINTERLEAVED:
        return False
    single = length % 8
    return single == 0 or (
        single <= 4 if length >= MIN_BLOCKED else single == 4 and length // 8 < 8
    )


# Elements of float32 in a vector, where vectors can be read by masks.
_LANES = {"avx512": 16, "avx2": 8}


def full_turns(length: int | None) -> int:
    """Return how many turns make whole vectors of a short row's pass; 0 where it is as it is.

    What g++ makes of the rest of such a loop is one element after the other. Of that time softmax
    of 1,000 rows of 77 takes 0.44, of 100 0.70, layer norm 0.73 and 1.0, a maximum 0.32 and 0.38
    (AVX-512, one thread of an EPYC).

    Args:
        length: Elements of float32 in a row; None where that is not known.
    """
    lanes = _LANES.get(current_machine().isa, 0)
    if not lanes or length is None or not lanes < length < MIN_BLOCKED or length % lanes == 0:
        return 0
    return -(-length // lanes) * lanes


def turns(length: int) -> int:
    """Return what a short vector loop takes: vectors, halves of vectors, and single elements."""
    vectors, rest = divmod(length, 16)
    half, single = divmod(rest, 8)
    return vectors + half + single if length < MIN_BLOCKED else 0


def tile(itemsize: int, extent: int | None, step: int | None) -> tuple[int, int]:
    """Return rows and columns of a tile that is turned over.

    Args:
        itemsize: Bytes of an element.
        extent: Length of the axis that the columns are along, None where it is not known.
        step: Elements from one column to the next in memory, likewise.
    """
    columns = max(TILE_BYTES // itemsize, LINE)
    while extent is not None and columns // 2 >= max(extent, 8):
        columns //= 2
    far = step is not None and step * itemsize % PAGE == 0
    return TILE_BYTES * (2 if far else 1) // itemsize, columns

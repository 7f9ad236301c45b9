"""The pause program: a static ELF file of a few hundred bytes, assembled here so that no compiler is needed.

It is the first process of a pod sandbox: it blocks SIGTERM, SIGINT and SIGCHLD, waits for them, leaves with
status 0 on the first two and reaps every dead child on the third (pods that share one process namespace).
Covers x86-64 and AArch64 Linux. Blocked signals reach a namespace's first process although it has no handlers,
so waiting for them replaces handlers and their return trampolines.
"""

from __future__ import annotations

import struct

SIGINT, SIGTERM, SIGCHLD = 2, 15, 17
SIGNALS = sum(1 << (signal - 1) for signal in (SIGINT, SIGTERM, SIGCHLD))
LOAD_ADDRESS = 0x400000
ELF_HEADER, PROGRAM_HEADER = 64, 56
MACHINES = {"amd64": 62, "arm64": 183}


def pause_program(architecture: str) -> bytes:
    """The bytes of /pause for `amd64` or `arm64`."""
    code = _amd64() if architecture == "amd64" else _arm64()
    start = ELF_HEADER + 2 * PROGRAM_HEADER
    size = start + len(code)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH",
        2,  # an executable at fixed addresses
        MACHINES[architecture],
        1,
        LOAD_ADDRESS + start,
        ELF_HEADER,
        0,
        0,
        ELF_HEADER,
        PROGRAM_HEADER,
        2,
        0,
        0,
        0,
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, LOAD_ADDRESS, LOAD_ADDRESS, size, size, 0x10000)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)  # readable, writable, not executable
    return header + load + stack + code


def _amd64() -> bytes:
    block = b"".join(
        [
            b"\x68" + struct.pack("<I", SIGNALS),  # push SIGNALS          the set, on the stack
            b"\xb8" + struct.pack("<I", 14),  # mov eax, rt_sigprocmask
            b"\x31\xff",  # xor edi, edi          SIG_BLOCK
            b"\x48\x89\xe6",  # mov rsi, rsp
            b"\x31\xd2",  # xor edx, edx
            b"\x41\xba" + struct.pack("<I", 8),  # mov r10d, 8           size of the set
            b"\x0f\x05",  # syscall
        ]
    )
    wait = b"".join(
        [
            b"\xb8" + struct.pack("<I", 128),  # mov eax, rt_sigtimedwait
            b"\x48\x89\xe7",  # mov rdi, rsp
            b"\x31\xf6",  # xor esi, esi          no details
            b"\x31\xd2",  # xor edx, edx          no time limit
            b"\x41\xba" + struct.pack("<I", 8),  # mov r10d, 8
            b"\x0f\x05",  # syscall
            b"\x83\xf8\xfc",  # cmp eax, -EINTR       stopped and continued
        ]
    )
    wait += b"\x74" + _back(len(wait) + 2)  # je wait
    leave = b"".join(
        [
            b"\xb8" + struct.pack("<I", 231),  # mov eax, exit_group
            b"\x31\xff",  # xor edi, edi
            b"\x0f\x05",  # syscall
        ]
    )
    reap = b"".join(
        [
            b"\xb8" + struct.pack("<I", 61),  # mov eax, wait4
            b"\x48\x83\xcf\xff",  # or rdi, -1            any child
            b"\x31\xf6",  # xor esi, esi
            b"\xba" + struct.pack("<I", 1),  # mov edx, WNOHANG
            b"\x45\x31\xd2",  # xor r10d, r10d
            b"\x0f\x05",  # syscall
            b"\x85\xc0",  # test eax, eax
        ]
    )
    reap += b"\x7f" + _back(len(reap) + 2)  # jg reap
    wait += b"\x83\xf8" + bytes([SIGCHLD])  # cmp eax, SIGCHLD
    wait += b"\x74" + bytes([len(leave)])  # je reap
    again = b"\xeb" + _back(len(wait) + len(leave) + len(reap) + 2)  # jmp wait
    return block + wait + leave + reap + again


def _back(distance: int) -> bytes:
    """The operand of a short jump that goes back `distance` bytes from its own end."""
    return struct.pack("<b", -distance)


def _arm64() -> bytes:
    def movz(register: int, value: int) -> int:
        return 0xD2800000 | value << 5 | register

    svc, sp = 0xD4000001, 31
    words = [
        movz(9, SIGNALS & 0xFFFF),
        0xF2A00000 | (SIGNALS >> 16) << 5 | 9,  # movk x9, SIGNALS >> 16, lsl 16
        0xF81F0FE9,  # str x9, [sp, #-16]!
        movz(0, 0),
        0x910003E1,  # mov x1, sp
        movz(2, 0),
        movz(3, 8),
        movz(8, 135),  # rt_sigprocmask
        svc,
    ]
    wait = len(words)
    words += [
        0x91000000 | sp << 5,  # mov x0, sp
        movz(1, 0),
        movz(2, 0),
        movz(3, 8),
        movz(8, 137),  # rt_sigtimedwait
        svc,
        0x3100101F,  # cmn w0, #4            -EINTR: stopped and continued
    ]
    words.append(_branch_if(0, wait - len(words)))  # b.eq wait
    words.append(0x7100001F | SIGCHLD << 10)  # cmp w0, SIGCHLD
    words += [_branch_if(0, 4), movz(0, 0), movz(8, 94), svc]  # b.eq reap; exit_group(0)
    reap = len(words)
    words += [
        0x92800000,  # mov x0, #-1
        movz(1, 0),
        movz(2, 1),
        movz(3, 0),
        movz(8, 260),  # wait4
        svc,
        0x7100001F,  # cmp w0, #0
    ]
    words.append(_branch_if(12, reap - len(words)))  # b.gt reap
    words.append(0x14000000 | (wait - len(words)) & 0x3FFFFFF)  # b wait
    return struct.pack(f"<{len(words)}I", *words)


def _branch_if(condition: int, offset: int) -> int:
    """A conditional branch by `offset` instructions."""
    return 0x54000000 | (offset & 0x7FFFF) << 5 | condition

/* The pause program for AArch64; amd64.s says what it does. */

.set MACHINE, 183
.include "elf.inc"

.set rt_sigprocmask, 135
.set rt_sigtimedwait, 137
.set wait4, 260
.set exit_group, 94

    movz x9, #(SIGNALS & 0xffff)
    movk x9, #(SIGNALS >> 16), lsl #16
    str x9, [sp, #-16]!                 /* the set, on the stack */
    mov x0, #0                          /* SIG_BLOCK */
    mov x1, sp
    mov x2, #0
    mov x3, #SET_SIZE
    mov x8, #rt_sigprocmask
    svc #0
wait:
    mov x0, sp
    mov x1, #0                          /* no details */
    mov x2, #0                          /* no time limit */
    mov x3, #SET_SIZE
    mov x8, #rt_sigtimedwait
    svc #0
    cmn w0, #EINTR                      /* stopped and continued */
    b.eq wait
    cmp w0, #SIGCHLD
    b.eq reap
    mov x0, #0
    mov x8, #exit_group
    svc #0
reap:
    mov x0, #-1                         /* any child */
    mov x1, #0
    mov x2, #WNOHANG
    mov x3, #0
    mov x8, #wait4
    svc #0
    cmp w0, #0
    b.gt reap
    b wait
end:

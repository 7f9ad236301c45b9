/* The first process of a pod sandbox. It blocks SIGTERM, SIGINT and SIGCHLD and waits for them: on the first two it
   leaves with status 0, on the third it reaps every dead child (pods that share one process namespace).
   Blocked signals reach the first process of a namespace although it has no handlers, so that none are needed.
   Built by tools/build_pause.py. */

.intel_syntax noprefix
.set MACHINE, 62
.include "elf.inc"

.set rt_sigprocmask, 14
.set rt_sigtimedwait, 128
.set wait4, 61
.set exit_group, 231

    push SIGNALS                        /* the set, on the stack */
    mov eax, rt_sigprocmask
    xor edi, edi                        /* SIG_BLOCK */
    mov rsi, rsp
    xor edx, edx
    mov r10d, SET_SIZE
    syscall
wait:
    mov eax, rt_sigtimedwait
    mov rdi, rsp
    xor esi, esi                        /* no details */
    xor edx, edx                        /* no time limit */
    mov r10d, SET_SIZE
    syscall
    cmp eax, -EINTR                     /* stopped and continued */
    je wait
    cmp eax, SIGCHLD
    je reap
    mov eax, exit_group
    xor edi, edi
    syscall
reap:
    mov eax, wait4
    or rdi, -1                          /* any child */
    xor esi, esi
    mov edx, WNOHANG
    xor r10d, r10d
    syscall
    test eax, eax
    jg reap
    jmp wait
end:

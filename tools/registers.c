// Preloaded into the User Mode Linux guest (tools/guest.py): sets a process's registers where its kernel cannot.
//
// The guest keeps as many of a process's registers as its kernel knew of when it was built, which with AMX in the
// processor is not all. Linux takes a set of registers only whole (xstateregs_set in its arch/x86/kernel/fpu/regset.c):
// it answers a shorter one with EFAULT, and the guest dies. Here the rest is added as it is in the process.
//
// The guest calls this also on stacks of one page, so nothing large is on the stack. It is built with -z now, since the
// dynamic linker, to bind a symbol, saves all registers there.
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char all[1 << 16];  // the guest is a single thread on the host; with AMX the registers are 11 KiB

static long set_all(pid_t process, const struct iovec* known) {
    struct iovec registers = {all, sizeof all};
    if (syscall(SYS_ptrace, PTRACE_GETREGSET, process, NT_X86_XSTATE, &registers) < 0) return -1;
    if (known->iov_len > registers.iov_len) return errno = EFAULT, -1;
    memcpy(all, known->iov_base, known->iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, process, NT_X86_XSTATE, &registers);
}

long ptrace(enum __ptrace_request request, ...) {
    va_list arguments;
    va_start(arguments, request);
    pid_t process = va_arg(arguments, pid_t);
    void* address = va_arg(arguments, void*);
    void* data = va_arg(arguments, void*);
    va_end(arguments);

    long word;
    int peek = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
    long result = syscall(SYS_ptrace, request, process, address, peek ? &word : data);
    if (result == 0 && peek) return errno = 0, word;
    if (result < 0 && errno == EFAULT && request == PTRACE_SETREGSET && address == (void*)NT_X86_XSTATE)
        return set_all(process, data);
    return result;
}

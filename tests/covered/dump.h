// Compiled into every source file when coverage is measured: gcov writes its counts only on exit, but tests kill
// processes or end them with _exit.
#pragma once

#include <csignal>
#include <unistd.h>

extern "C" void __gcov_dump(void);
extern "C" __attribute__((weak, used, visibility("default"))) void bagua_gcov_dump(void) { __gcov_dump(); }

namespace {
void dump_and_end(int number) {
    bagua_gcov_dump();
    std::signal(number, SIG_DFL);
    std::raise(number);
}

__attribute__((constructor, used)) void dump_on_sigterm(void) {
    struct sigaction known {};
    if (sigaction(SIGTERM, nullptr, &known) == 0 && known.sa_handler == SIG_DFL) {
        std::signal(SIGTERM, dump_and_end);
    }
}
}  // namespace

// Findings end with abort(), so that each program can tell what it was doing; memory that the system does not give is a
// null pointer, as in a release.
extern "C" const char* __asan_default_options() { return "abort_on_error=1:allocator_may_return_null=1:detect_leaks=1"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
extern "C" const char* __tsan_default_options() { return "abort_on_error=1:halt_on_error=1"; }

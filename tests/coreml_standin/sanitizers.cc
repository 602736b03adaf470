// SPDX-License-Identifier: Apache-2.0
// What the sanitizers are to forgive: libraries of the system that keep things for the life of the process. Leaks of
// our own show in the stand-in's counts.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libobjc.so\nleak:libgnustep-base\n"; }
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "deadlock:libobjc.so\ndeadlock:libgnustep-base\n"; }

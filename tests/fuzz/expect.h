#pragma once

#include <cstdio>
#include <cstdlib>

/// A promise that does not hold is a finding: says which, and ends the program so that libFuzzer keeps the
/// input.
#define FUZZ_EXPECT(promise)                                                            \
  do {                                                                                  \
    if (!(promise)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #promise); \
      std::abort();                                                                     \
    }                                                                                   \
  } while (false)

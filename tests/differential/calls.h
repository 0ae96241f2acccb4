#pragma once

#include "tests/differential/side.h"
#include "tests/support/process.h"

namespace okcvm::differential {

/// Root and two ordinary users, the second of them also in the first one's group.
const test::User& user_of(int who);

using Call = Outcome (*)(Side& side, const Operation& operation);

/// How an operation of this kind is carried out.
Call call_of(Kind kind);

/// The parts of the table, by what the calls work on.
Call open_file_call(Kind kind);  // nullptr for another kind
Call mapping_call(Kind kind);    // likewise
Call path_call(Kind kind);

/// Makes an Outcome of a system call's return value and errno.
Outcome outcome_of(long result);

}  // namespace okcvm::differential

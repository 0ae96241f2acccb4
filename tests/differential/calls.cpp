#include "tests/differential/calls.h"

#include <array>
#include <cerrno>

namespace okcvm::differential {

const test::User& user_of(int who) {
  static const std::array<test::User, kUsers> users{
      test::User{}, test::kAlice, test::User{test::kBob.uid, test::kBob.gid, {test::kAlice.gid}}};
  return users[static_cast<std::size_t>(who)];
}

Outcome outcome_of(long result) {
  return {result, result < 0 ? errno : 0, {}};
}

Call call_of(Kind kind) {
  if (const Call call = open_file_call(kind)) return call;
  if (const Call call = mapping_call(kind)) return call;
  return path_call(kind);
}

}  // namespace okcvm::differential

#include "policy/error.h"

#include <array>
#include <cstring>

namespace okcvm {
namespace {

struct CodeRow {
  Code code;
  CodeText text;
  int errno_value;
};

constexpr std::array kCodes{
    CodeRow{Code::kInvalidRequest, {"invalid_request", 400}, EINVAL},
    CodeRow{Code::kPathTraversalBlocked, {"path_traversal_blocked", 400}, EPERM},
    CodeRow{Code::kReadOnly, {"read_only", 403}, EROFS},
    CodeRow{Code::kNotFound, {"not_found", 404}, ENOENT},
    CodeRow{Code::kAlreadyExists, {"already_exists", 409}, EEXIST},
    CodeRow{Code::kAmbiguousPrefix, {"ambiguous_prefix", 409}, EINVAL},
    CodeRow{Code::kUnknownSnapshot, {"unknown_snapshot", 400}, ENOENT},
    CodeRow{Code::kSnapshotsDisabled, {"snapshots_disabled", 409}, EOPNOTSUPP},
    CodeRow{Code::kForbidden, {"forbidden", 403}, EACCES},
    CodeRow{Code::kBusy, {"busy", 409}, EBUSY},
    CodeRow{Code::kQuotaExceeded, {"quota_exceeded", 507}, EDQUOT},
    CodeRow{Code::kNoSpace, {"no_space", 507}, ENOSPC},
    CodeRow{Code::kCorrupt, {"corrupt", 500}, EUCLEAN},
    CodeRow{Code::kInternal, {"internal", 500}, EIO},
};

struct ErrnoRow {
  int errno_value;
  Code code;
};

constexpr std::array kErrnos{
    ErrnoRow{EINVAL, Code::kInvalidRequest},
    ErrnoRow{ENAMETOOLONG, Code::kInvalidRequest},
    ErrnoRow{ENOTDIR, Code::kInvalidRequest},
    ErrnoRow{EISDIR, Code::kInvalidRequest},
    ErrnoRow{E2BIG, Code::kInvalidRequest},
    ErrnoRow{EFBIG, Code::kInvalidRequest},
    ErrnoRow{EXDEV, Code::kInvalidRequest},
    ErrnoRow{ELOOP, Code::kInvalidRequest},
    ErrnoRow{ENOENT, Code::kNotFound},
    ErrnoRow{ENODATA, Code::kNotFound},
    ErrnoRow{ESTALE, Code::kNotFound},
    ErrnoRow{EEXIST, Code::kAlreadyExists},
    ErrnoRow{ENOTEMPTY, Code::kAlreadyExists},
    ErrnoRow{EROFS, Code::kReadOnly},
    ErrnoRow{EACCES, Code::kForbidden},
    ErrnoRow{EPERM, Code::kForbidden},
    ErrnoRow{EBUSY, Code::kBusy},
    ErrnoRow{ETXTBSY, Code::kBusy},
    ErrnoRow{EDQUOT, Code::kQuotaExceeded},
    ErrnoRow{ENOSPC, Code::kNoSpace},
    ErrnoRow{EUCLEAN, Code::kCorrupt},
    ErrnoRow{EOPNOTSUPP, Code::kInvalidRequest},
};

const CodeRow& row_of(Code code) {
  for (const auto& row : kCodes)
    if (row.code == code) return row;
  return kCodes.back();
}

}  // namespace

CodeText text_of(Code code) {
  return row_of(code).text;
}

Error Error::plain(int errno_value) {
  Code code = Code::kInternal;
  for (const auto& row : kErrnos)
    if (row.errno_value == errno_value) code = row.code;
  return Error{code, errno_value, {}, {}};
}

Error Error::from_errno(int errno_value, std::string_view what, std::string path) {
  Error error = plain(errno_value);
  const char* description = errno_value == ENOSPC ? "no space is left, in bytes or in inodes: free some there"
                                                  : ::strerrordesc_np(errno_value);
  error.message.append(what).append(": ").append(description ? description : "error");
  error.path = std::move(path);
  return error;
}

Error Error::of(Code code, std::string message, std::string path) {
  return Error{code, row_of(code).errno_value, std::move(message), std::move(path)};
}

}  // namespace okcvm

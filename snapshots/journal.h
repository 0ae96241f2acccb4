#pragma once

#include <optional>

#include "policy/error.h"
#include "snapshots/oid.h"
#include "snapshots/repository.h"

namespace okcvm::snapshots {

/// A restore that has begun to touch the workspace. While it is there, the workspace may be anything between
/// `before` and `base`; both are complete in the repository, so that either can be reached again from any
/// point.
struct Journal {
  Oid before;  // the snapshot of what was there
  Oid base;    // what the workspace is when all is done

  /// On disk when it returns.
  Result<void> write(const Repository& repository) const;
  /// Nothing if no restore was under way; `corrupt` if it cannot be understood.
  static Result<std::optional<Journal>> read(const Repository& repository);
  static Result<void> remove(const Repository& repository);
};

}  // namespace okcvm::snapshots

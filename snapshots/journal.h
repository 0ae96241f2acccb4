#pragma once

#include <filesystem>
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

  /// Of a restore that can be neither finished nor taken back: puts the journal aside, if there is one, so
  /// that no start follows it over what came since. From then on nobody knows how the workspace differs from
  /// what is recorded, until that is forgotten.
  static Result<void> give_up(const std::filesystem::path& repository);
  static bool was_given_up(const Repository& repository);
  static void forget_given_up(const Repository& repository);
};

}  // namespace okcvm::snapshots

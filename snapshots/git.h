#pragma once

// The only place that includes libgit2. Of it we use the object database, refs and the text diff: no index,
// no checkout, no filters, attributes, ignores or hooks, and no configuration of the host or of a user.
#include <git2.h>
#include <git2/sys/odb_backend.h>

#include <memory>
#include <string>

#include "policy/error.h"
#include "snapshots/oid.h"

namespace okcvm::snapshots::git {

template <auto Free>
struct Release {
  template <typename T>
  void operator()(T* object) const noexcept {
    Free(object);
  }
};

using RepositoryHandle = std::unique_ptr<git_repository, Release<git_repository_free>>;
using OdbHandle = std::unique_ptr<git_odb, Release<git_odb_free>>;
using ObjectHandle = std::unique_ptr<git_odb_object, Release<git_odb_object_free>>;
using StreamHandle = std::unique_ptr<git_odb_stream, Release<git_odb_stream_free>>;
using ReferenceHandle = std::unique_ptr<git_reference, Release<git_reference_free>>;
using ConfigHandle = std::unique_ptr<git_config, Release<git_config_free>>;
using PatchHandle = std::unique_ptr<git_patch, Release<git_patch_free>>;

/// Starts libgit2 once for the process, shut off from every configuration file. Called before any other use.
void start();

/// What libgit2 says went wrong, as an Error: ENOSPC and its like keep their errno, anything else is `code`.
Error last_error(Code code, const std::string& what, std::string path = {});

inline const git_oid& native(const Oid& oid) {
  static_assert(sizeof(Oid) == sizeof(git_oid));
  return *reinterpret_cast<const git_oid*>(&oid);
}
inline Oid from_native(const git_oid& oid) {
  return Oid::from_raw(reinterpret_cast<const char*>(oid.id));
}

}  // namespace okcvm::snapshots::git

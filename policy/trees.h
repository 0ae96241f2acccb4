#pragma once

#include <sys/stat.h>

#include <functional>

#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm {

// Directory trees as deep as users care to make them: no recursion, and a bounded number of descriptors, of
// which std::filesystem needs one a level.

/// Calls `visit` with the status of everything below `top`, which is open for reading; links are not
/// followed. Each directory is entered once. What is moved or removed meanwhile may be left out. Once `visit`
/// answers false it goes no further: `busy`.
Result<void> visit_tree(FileDescriptor top, const std::function<bool(const struct stat&)>& visit);

/// Removes the entry of a directory (unlinkat(2)'s arguments) with everything below it; it is no error if
/// there is none. Nobody else may change the tree meanwhile. After a failure, what is left of it may stand
/// elsewhere in it.
Result<void> remove_tree(int directory, const char* name);

}  // namespace okcvm

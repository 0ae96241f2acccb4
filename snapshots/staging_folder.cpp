#include "snapshots/staging_folder.h"

#include <sys/stat.h>

#include "policy/fault.h"
#include "policy/trees.h"
#include "snapshots/staging.h"

namespace okcvm::snapshots {

Result<StagingFolder> StagingFolder::make(const Disk& disk) {
  if (auto removed = remove_tree(disk.root(), kStagingFolder); !removed) return fail(removed.error());
  fault_point("restore.staging");
  if (const int injected = fault_error("restore.staging"))
    return fail_errno(injected, "the restore cannot begin");
  if (::mkdirat(disk.root(), kStagingFolder, 0700) != 0) return fail_errno(errno, "the restore cannot begin");
  auto opened = disk.open_directory(kStagingFolder);
  if (!opened) return fail(opened.error());
  return StagingFolder(disk.root(), Disk(std::move(*opened)));
}

void StagingFolder::remove() {
  if (parent_ >= 0 && remove_tree(parent_, kStagingFolder)) parent_ = -1;
}

}  // namespace okcvm::snapshots

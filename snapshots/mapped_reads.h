#pragma once

namespace okcvm::snapshots {

/// While one lives, a page of a mapped file that cannot be read (the file became shorter, or the disk fails)
/// is read as zeros by this thread and does not end the process by SIGBUS. libgit2 maps packs and their
/// indexes; what was read so does not fit its checksum. Such a page stays as it is until the file is mapped
/// anew. They must not nest.
class MappedReads final {
 public:
  MappedReads();
  ~MappedReads();
  MappedReads(const MappedReads&) = delete;
  MappedReads& operator=(const MappedReads&) = delete;
};

/// Has SIGBUS do so from now on. Called once; other SIGBUS end the process as before.
void watch_mapped_reads();

}  // namespace okcvm::snapshots

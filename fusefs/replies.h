#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "fusefs/operations.h"
#include "fusefs/protocol.h"

namespace okcvm::fusefs {

// What operations answer, in libfuse's terms.

fuse_entry_param parameters_of(const Entry& entry);
fuse_file_info file_info_of(const Opened& opened);

/// To kStatx: the attributes, and the birth time where the backing file system knows it.
void reply_statx(fuse_req_t request, const Entry& entry, const std::optional<timespec>& born);

/// The value of an extended attribute, or the list of their names; without room only how long it is
/// (getxattr(2)).
void reply_attribute_bytes(fuse_req_t request, const std::string& bytes, std::size_t room);

/// The answer to READDIR or READDIRPLUS, filled name by name. Throws std::bad_alloc.
class ListingReply {
 public:
  ListingReply(fuse_req_t request, std::size_t room);

  /// Adds a name; false when it does not fit any more.
  bool add(const ListedName& row);
  /// Whether a name with its inode still fits, asked before a reference to the inode is taken.
  bool fits_with_inode(const ListedName& row) const;
  /// With an entry of no inode, the kernel looks the name up when somebody asks.
  void add_with_inode(const ListedName& row, const Entry& entry);

  /// How many bytes of names are wanted to fill it, as each takes `times` as many here; 0 when it is as good
  /// as full.
  std::size_t names_wanted(std::size_t times) const;
  bool is_empty() const { return used_ == 0; }
  void send() const;

 private:
  fuse_req_t request_;
  std::size_t room_;
  std::size_t used_ = 0;
  std::unique_ptr<char[]> buffer_;
};

}  // namespace okcvm::fusefs

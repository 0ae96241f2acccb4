#include "fusefs/replies.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>

namespace okcvm::fusefs {
namespace {

constexpr std::size_t kLongestName = 512;  // with what getdents64(2) tells of it

}  // namespace

fuse_entry_param parameters_of(const Entry& entry) {
  fuse_entry_param out{};
  out.ino = entry.id.value;
  out.generation = 1;
  out.attr = entry.attributes;
  out.attr_timeout = entry.attributes_seconds;
  out.entry_timeout = entry.name_seconds;
  return out;
}

fuse_file_info file_info_of(const Opened& opened) {
  fuse_file_info info{};
  info.fh = opened.file.value;
  info.keep_cache = opened.keep_cache;
  info.direct_io = opened.direct;
  info.noflush = true;
  return info;
}

void reply_statx(fuse_req_t request, const Entry& entry, const std::optional<timespec>& born) {
  const struct stat& status = entry.attributes;
  const auto time = [](const timespec& from) {
    return protocol::StatxTime{from.tv_sec, static_cast<std::uint32_t>(from.tv_nsec), 0};
  };
  protocol::StatxOut out{};
  out.valid_seconds = static_cast<std::uint64_t>(entry.attributes_seconds);
  out.valid_nanoseconds =
      static_cast<std::uint32_t>((entry.attributes_seconds - static_cast<double>(out.valid_seconds)) * 1e9);
  protocol::Statx& told = out.status;
  told.mask = STATX_BASIC_STATS | (born ? STATX_BTIME : 0);
  told.block_size = static_cast<std::uint32_t>(status.st_blksize);
  told.links = static_cast<std::uint32_t>(status.st_nlink);
  told.uid = status.st_uid;
  told.gid = status.st_gid;
  told.mode = static_cast<std::uint16_t>(status.st_mode);
  told.inode = status.st_ino;
  told.size = static_cast<std::uint64_t>(status.st_size);
  told.blocks = static_cast<std::uint64_t>(status.st_blocks);
  told.accessed = time(status.st_atim);
  told.born = time(born.value_or(timespec{}));
  told.changed = time(status.st_ctim);
  told.modified = time(status.st_mtim);
  told.device_major = major(status.st_rdev);
  told.device_minor = minor(status.st_rdev);
  fuse_reply_buf(request, reinterpret_cast<const char*>(&out), sizeof out);
}

void reply_attribute_bytes(fuse_req_t request, const std::string& bytes, std::size_t room) {
  if (room == 0)
    fuse_reply_xattr(request, bytes.size());
  else if (bytes.size() > room)
    fuse_reply_err(request, ERANGE);
  else
    fuse_reply_buf(request, bytes.data(), bytes.size());
}

ListingReply::ListingReply(fuse_req_t request, std::size_t room)
    : request_(request), room_(room), buffer_(new char[room]) {}

bool ListingReply::add(const ListedName& row) {
  struct stat status {};
  status.st_ino = row.inode;
  status.st_mode = row.type;
  const std::size_t left = room_ - used_;
  const auto size = fuse_add_direntry(request_, buffer_.get() + used_, left, row.name, &status, row.next);
  if (size > left) return false;
  used_ += size;
  return true;
}

bool ListingReply::fits_with_inode(const ListedName& row) const {
  return fuse_add_direntry_plus(request_, nullptr, 0, row.name, nullptr, 0) <= room_ - used_;
}

void ListingReply::add_with_inode(const ListedName& row, const Entry& entry) {
  fuse_entry_param out{};
  if (entry.id.value) {
    out = parameters_of(entry);
  } else {
    out.attr.st_ino = row.inode;
    out.attr.st_mode = row.type;
  }
  used_ += fuse_add_direntry_plus(request_, buffer_.get() + used_, room_ - used_, row.name, &out, row.next);
}

std::size_t ListingReply::names_wanted(std::size_t times) const {
  const std::size_t left = room_ - used_;
  if (used_ > 0 && left < room_ / 16) return 0;
  return std::max(left / times, kLongestName);
}

void ListingReply::send() const {
  fuse_reply_buf(request_, buffer_.get(), used_);
}

}  // namespace okcvm::fusefs

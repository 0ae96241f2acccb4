#include "fusefs/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <string_view>

namespace okcvm::fusefs {
namespace {

constexpr std::size_t kFirstStep = 4 * 1024;
constexpr std::size_t kLargestStep = 4 * 1024 * 1024;
constexpr std::string_view kFull =
    "the run-time directory is full: make its file system larger, or set --run-dir to another tmpfs";

std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

Result<SharedRegion> SharedRegion::open(const std::filesystem::path& path, std::size_t size, bool& is_new) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file)
    return fail_errno(errno, errno == ENOSPC ? kFull : "cannot open the run-time state of a session");

  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return fail_errno(errno, "cannot stat the run-time state");
  is_new = status.st_size == 0;
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) {
    if (errno == EFBIG) return fail(Code::kInternal, "cannot size the run-time state: raise LimitFSIZE=");
    return fail_errno(errno, "cannot size the run-time state");
  }

  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED) return fail_errno(errno, "cannot map the run-time state");
  return SharedRegion(std::move(file), static_cast<std::byte*>(data), size);
}

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      reserved_(other.reserved_) {}

SharedRegion::~SharedRegion() {
  if (data_) ::munmap(data_, size_);
}

Result<void> SharedRegion::reserve(std::size_t bytes) {
  if (bytes <= reserved_) return {};
  const std::size_t step = std::clamp(reserved_, kFirstStep, kLargestStep);
  const std::size_t target = std::min(round_up(bytes, step), size_);
  if (bytes > target) return fail_errno(ENOMEM);
  // The directory is for all sessions: none takes more than half of it.
  struct stat own {};
  struct statvfs space {};
  const bool grows =
      ::fstat(file_.get(), &own) == 0 && target > static_cast<std::size_t>(own.st_blocks) * 512;
  if (grows && target > kFirstStep && ::fstatvfs(file_.get(), &space) == 0 && space.f_blocks > 0 &&
      target > space.f_blocks * space.f_frsize / 2)
    return fail_errno(ENOSPC, kFull);
  if (auto ready = reserve_part(reserved_, target - reserved_); !ready) return ready;
  reserved_ = target;
  return {};
}

Result<void> SharedRegion::reserve_part(std::size_t offset, std::size_t bytes) {
  if (::fallocate(file_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0)
    return fail_errno(errno, errno == ENOSPC ? kFull : "");
  return {};
}

void SharedRegion::shrink(std::size_t bytes) {
  const std::size_t keep = round_up(bytes, kFirstStep);
  if (keep < reserved_) drop(keep, reserved_);
}

void SharedRegion::clear() {
  drop(0, size_);
}

void SharedRegion::drop(std::size_t keep, std::size_t end) {
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(keep),
              static_cast<off_t>(end - keep));
  reserved_ = keep;
}

}  // namespace okcvm::fusefs

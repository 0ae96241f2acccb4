#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::fusefs {

/// Writes notices to /dev/fuse, and looks names up. The kernel may have to wait for a lock then (of a
/// directory, of a page) that somebody holds who waits for an answer of the daemon's, and nothing ends that
/// wait, no signal either: a daemon that is killed meanwhile would not be gone, nobody would start the next
/// one, and its answer would never come. So this is done by a process of its own, which nobody waits for.
class Teller final {
 public:
  /// Starts that process; it ends with the caller's. To be called once, before the program has a second
  /// thread and what nobody else may keep open: the state directory's lock, sockets. Where mounts are not
  /// kept for a next daemon, those end then for which it still waits, as the others do by themselves.
  /// `are_kept` is asked from any thread whether they still are.
  static Result<void> start(bool (*are_kept)());

  /// Readable once that process has ended, though it should not have; to be borrowed, -1 where there is none.
  /// Where mounts are kept what can be told at once is told still, and the next daemon is needed, which tells
  /// everything; elsewhere who tells waits for the kernel himself from then on.
  static int ending();
  /// To be called when it takes long: it may be dead, but for a thread that the kernel holds up.
  static void look_after();

  /// What one thread at a time tells it.
  class Line final {
   public:
    /// For the mount at this path. Where there is no such process, as in tests, or it has no room, who tells
    /// waits for the kernel himself.
    static std::shared_ptr<Line> open(const std::string& mount_point);
    /// Writes these notices, each a whole message to the kernel, to `device`, and comes back when the kernel
    /// has taken them, once cut() was called, or after this time: kLate. The line is of use
    /// again once it is_done(), or one has waited for it. At most kMost bytes together. kNotFound: all were
    /// told, and the last is a look_up_message() that did not find its inode, or of the attributes alone of
    /// an inode that the kernel does not know.
    enum class Told : std::uint8_t { kYes, kNotFound, kLate, kByNobody };
    [[nodiscard]] Told tell(int device, std::span<std::byte> notices,
                            std::chrono::milliseconds timeout) const;
    /// After kLate, for the same.
    [[nodiscard]] Told wait(int device, std::span<std::byte> notices,
                            std::chrono::milliseconds timeout) const;
    /// To be called after kLate alone.
    bool is_done() const;
    void cut();

   private:
    Told tell_alone(int device, std::span<std::byte> notices, std::chrono::milliseconds timeout) const;

    explicit Line(FileDescriptor socket) : socket_(std::move(socket)) {}
    const FileDescriptor socket_;
    std::atomic<bool> is_cut_ = false;
  };
  static constexpr std::size_t kMost = 16 << 10;
};

/// What can stand among notices: has a path looked up in the mount at `mount_point`, as programs do that,
/// where this inode is expected.
std::vector<std::byte> look_up_message(const std::string& mount_point, const std::string& path,
                                       std::uint64_t inode);

/// As the offset of a FUSE_NOTIFY_INVAL_INODE: no pages are dropped.
constexpr std::int64_t kAttributesAlone = -1;

/// Writes notices one after the other. ENOENT and the like are no errors: the kernel does not know what it
/// should forget. Answers kYes or kNotFound.
Teller::Line::Told write_notices(int device, std::span<const std::byte> notices);

}  // namespace okcvm::fusefs

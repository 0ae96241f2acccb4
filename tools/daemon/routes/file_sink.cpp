#include "tools/daemon/routes/file_sink.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "fusefs/session_mount.h"
#include "tools/daemon/http/wire.h"

namespace okcvm::daemon::routes {
namespace {

constexpr std::size_t kHead = 64 * 1024;

Unexpected too_large(std::uint64_t most) {
  auto error = Error::of(Code::kQuotaExceeded,
                         "the file is larger than the " + std::to_string(most) + " bytes allowed");
  error.errno_value = EFBIG;
  return fail(std::move(error));
}

class FileSink final : public BodySink {
 public:
  FileSink(FileSinkRequest request, std::shared_ptr<fusefs::SessionMount> mount,
           std::unique_ptr<fusefs::IncomingFile> file)
      : request_(std::move(request)), mount_(std::move(mount)), file_(std::move(file)) {}

  Result<void> write(std::string_view bytes) override {
    size_ += bytes.size();
    if (size_ > request_.most) return too_large(request_.most);
    head_.append(bytes.substr(0, kHead - std::min(kHead, head_.size())));
    while (!bytes.empty()) {
      const auto written = ::write(file_->descriptor(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0)
        return fail_errno(written < 0 ? errno : ENOSPC, "the file cannot be written", request_.path.text());
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
  }

  Result<Response> finish() override {
    const auto pass = request_.session->gate().share();
    if (!pass) return fail(pass.error());
    if (request_.session->mount() != mount_)
      return fail(Code::kBusy, "the session was unmounted meanwhile: send the file again");
    auto published = file_->publish();
    if (!published) return fail(published.error());
    return request_.finished({std::move(*published), std::move(head_)});
  }

 private:
  const FileSinkRequest request_;
  const std::shared_ptr<fusefs::SessionMount> mount_;  // outlives the file
  const std::unique_ptr<fusefs::IncomingFile> file_;
  std::uint64_t size_ = 0;
  std::string head_;
};

}  // namespace

Result<void> check_body_kind(const Request& request) {
  if (!request.header("content-range").empty())  // RFC 9110, 14.5
    return fail(Code::kInvalidRequest, "a part of a file cannot be put: send the whole of it");
  if (const auto coding = lower_case(request.header("content-encoding"));
      !coding.empty() && coding != "identity")  // RFC 9110, 8.4
    return fail(Code::kInvalidRequest,
                "content codings are not undone: send the bytes themselves, without Content-Encoding");
  if (lower_case(request.header("content-type")).starts_with("multipart/form-data"))
    return fail(Code::kInvalidRequest,
                "a form is no file: send the file itself as the body (curl -T FILE, or --data-binary @FILE)");
  return {};
}

Result<std::unique_ptr<BodySink>> open_file_sink(FileSinkRequest request,
                                                 std::optional<std::uint64_t> announced) {
  if (announced.value_or(0) > request.most) return too_large(request.most);
  const auto pass = request.session->gate().share();
  if (!pass) return fail(pass.error());
  auto mount = request.session->need_mount();
  if (!mount) return fail(mount.error());
  auto file =
      (*mount)->files().create(request.caller, request.path, request.mode, request.if_exists, request.check);
  if (!file) return fail(file.error());
  return std::make_unique<FileSink>(std::move(request), std::move(*mount), std::move(*file));
}

}  // namespace okcvm::daemon::routes

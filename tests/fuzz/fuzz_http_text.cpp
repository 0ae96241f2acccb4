#include <fuzzer/FuzzedDataProvider.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "policy/iso_time.h"
#include "policy/percent_encoding.h"
#include "tests/fuzz/expect.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/http/uri.h"
#include "tools/daemon/routes/fields.h"

/// The texts in a request: addresses, queries, ranges, times, modes and JSON bodies.
namespace {

using namespace okcvm;
using namespace okcvm::daemon;

void fuzz_address(const std::string& text) {
  if (const auto decoded = percent_decoded(text)) {
    FUZZ_EXPECT(decoded->size() <= text.size() && decoded->find('\0') == decoded->npos);
    FUZZ_EXPECT(percent_decoded(percent_encoded(*decoded)) == *decoded);
  }
  const auto again = percent_decoded(percent_encoded(text));
  FUZZ_EXPECT(again ? *again == text : text.find('\0') != text.npos);

  const auto query = parse_query(text);
  if (!query) return;
  QueryFields fields(*query);
  fields.text("name");
  fields.flag("flag");
  if (const auto limit = fields.integer("limit", 1, 10'000)) FUZZ_EXPECT(*limit >= 1 && *limit <= 10'000);
  const auto ended = fields.end();
  FUZZ_EXPECT(ended || !ended.error().message.empty());
}

void fuzz_range(const std::string& text, std::uint64_t size) {
  const auto range = parse_range(text, size);
  if (!range || !*range) return;
  FUZZ_EXPECT((*range)->size > 0 && (*range)->offset < size && (*range)->size <= size - (*range)->offset);
}

void fuzz_small_texts(const std::string& text) {
  if (const auto mode = parse_mode(text)) FUZZ_EXPECT(*mode <= 0777 && parse_mode(mode_text(*mode)) == mode);
  if (const auto time = parse_time(text)) {
    FUZZ_EXPECT(time->tv_nsec >= 0 && time->tv_nsec < 1'000'000'000);
    const auto again = parse_time(time_text(*time));
    FUZZ_EXPECT(again && again->tv_sec == time->tv_sec);
    FUZZ_EXPECT(to_milliseconds(*again) == to_milliseconds(*time));
  }
}

void fuzz_body(const std::string& text) {
  Fields fields(text);
  if (const auto value = fields.text("text", 8)) FUZZ_EXPECT(value->size() <= 8);
  fields.required_text("id");
  fields.flag("flag");
  if (const auto value = fields.integer("number", -5, 5)) FUZZ_EXPECT(*value >= -5 && *value <= 5);
  if (const auto labels = fields.texts_by_name("labels")) FUZZ_EXPECT(labels->size() <= 256);
  fields.texts("skills");
  if (auto owner = fields.object("owner")) {
    owner->integer("uid", 0, UINT32_MAX);
    fields.adopt(*owner);
  }
  fields.required_value("data");
  const auto ended = fields.end();
  // An error message is sent as JSON: it must be sendable.
  if (!ended)
    nlohmann::json(ended.error().message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider provider(data, size);
  const auto length = provider.ConsumeIntegral<std::uint64_t>();
  const auto text = provider.ConsumeRemainingBytesAsString();
  fuzz_address(text);
  fuzz_range(text, length);
  fuzz_range("bytes=" + text, length);
  fuzz_small_texts(text);
  fuzz_body(text);
  return 0;
}

#include <fuzzer/FuzzedDataProvider.h>

#include "policy/iso_time.h"
#include "tests/fuzz/registry_use.h"

/// A registry's file with any bytes in it changed, cut short or followed by others.
namespace {

using namespace okcvm;
using namespace okcvm::daemon;

/// The file of a registry that was used and closed.
std::string sound_file() {
  fuzz::remove_registry();
  {
    const auto registry = Registry::open(fuzz::registry_file(), true);
    FUZZ_EXPECT(registry.has_value());
    SessionRecord record(*SessionId::parse("s1"));
    record.created_at = *parse_time("2026-11-21T22:05:05.123Z");
    record.labels = {{"k", "v"}};
    record.skills = {"pdf"};
    FUZZ_EXPECT((*registry)->insert(record).has_value());
    FUZZ_EXPECT(
        (*registry)->add_checkpoint(record.id, {"c1", {}, {}, record.created_at, 2, "{}"}, 9).has_value());
    FUZZ_EXPECT((*registry)->add_agent({"a1", "root", 0, record.id}).has_value());
  }
  return fuzz::registry_bytes();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto sound = sound_file();
  FuzzedDataProvider provider(data, size);
  auto bytes = sound;
  const bool check = provider.ConsumeBool();
  const bool is_cut = provider.ConsumeBool();
  if (is_cut) bytes.resize(provider.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
  while (provider.remaining_bytes() > 0 && !bytes.empty()) {
    const auto at = provider.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1);
    const auto change = provider.ConsumeRandomLengthString(16);
    bytes.replace(at, change.size(), change);
  }
  fuzz::lay_out(bytes);

  const auto registry = Registry::open(fuzz::registry_file(), check);
  if (registry)
    fuzz::use(**registry);
  else
    FUZZ_EXPECT(!registry.error().message.empty());
  return 0;
}

// What idle sessions keep in memory.

#include "tests/tools/fake_mounts.h"

namespace okcvm::test {
namespace {

using namespace snapshots;

/// Of a store, what it is asked to let go of.
class CountingStore final : public Store {
 public:
  int released = 0;
  void release_memory() override { ++released; }

  std::vector<RelPath> recovered() const override { return {}; }
  Result<Snapshot> take(const std::string&, const ChangeSource&, const Progress&) override { return none(); }
  Result<std::vector<Snapshot>> list(std::size_t, const std::string&) override { return none(); }
  Result<Snapshot> find(const std::string&) override { return none(); }
  Result<std::vector<Difference>> show(const std::string&, const std::optional<Caller>&,
                                       const Progress&) override {
    return none();
  }
  Result<std::vector<Difference>> diff(const std::string&, const std::optional<std::string>&,
                                       const ChangeSource&, const std::optional<Caller>&,
                                       const Progress&) override {
    return none();
  }
  Result<RestoreResult> restore(const std::string&, const std::vector<RelPath>&, bool, const RestoreHooks&,
                                const Progress&) override {
    return none();
  }
  Result<RestoreResult> undo(const RestoreHooks&, const Progress&) override { return none(); }
  Result<Snapshot> fork(const std::string&, const StoreConfig&, const Progress&) override { return none(); }
  Result<VerifyReport> verify(const std::string&, const ChangeSource&, const Progress&) override {
    return none();
  }

 private:
  static Unexpected none() { return fail(Code::kUnknownSnapshot, "there are no snapshots"); }
};

TEST_F(SessionsOnFakes, LetGoOfMemoryWhenTheyIdle) {
  auto& session = create("s");
  const auto store = std::make_shared<CountingStore>();
  session.set_store(store, {});
  sessions_->save_uses();
  store->released = 0;
  const auto saved = session.last_used();
  while (session.last_used() == saved) session.touch();  // until it is another millisecond
  sessions_->save_uses();
  EXPECT_EQ(store->released, 0) << "it was used just now";
  sessions_->save_uses();
  EXPECT_EQ(store->released, 1);
}

}  // namespace
}  // namespace okcvm::test

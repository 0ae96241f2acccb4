#include "fusefs/handover.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <string_view>
#include <thread>

namespace okcvm::fusefs {
namespace {

/// Requests of one program, which is this thread: it stays on a processor, so it is known where it runs.
class HandoverTest : public ::testing::Test {
 protected:
  HandoverTest() {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor_, &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }
  ~HandoverTest() override { ::sched_setaffinity(0, sizeof former_, &former_); }

  bool gives_away(Handover::Seat& seat, std::string_view request) {
    return handover_.gives_away(seat, program_, std::as_bytes(std::span(request)));
  }
  /// Reads as many requests of the program as it takes to know where it runs.
  void serve_until_seated(Handover::Seat& seat) {
    for (int i = 0; i < 1000 && !seat.has_place(); ++i) ASSERT_FALSE(gives_away(seat, "served"));
    ASSERT_EQ(seat.processor(), processor_);
    handover_.open(seat);
  }
  std::string text(std::size_t size) const { return std::string(buffer_.data(), size); }
  std::string taken(Handover::Seat& seat) { return text(handover_.take(seat, bytes())); }
  std::string taken_back(Handover::Age age) { return text(handover_.take_back(bytes(), age)); }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(buffer_)); }

  const std::uint32_t program_ = static_cast<std::uint32_t>(::gettid());
  const int processor_ = ::sched_getcpu();
  const cpu_set_t former_ = [] {
    cpu_set_t all;
    ::sched_getaffinity(0, sizeof all, &all);
    return all;
  }();
  std::array<char, 4096> buffer_;
  Handover handover_;
  Handover::Seat beside_program_;
  Handover::Seat elsewhere_;
};

TEST_F(HandoverTest, GivesARequestToTheThreadBesideItsProgram) {
  serve_until_seated(beside_program_);
  EXPECT_FALSE(handover_.has_given());
  EXPECT_TRUE(gives_away(elsewhere_, "a request"));
  EXPECT_TRUE(handover_.has_given());
  EXPECT_EQ(taken(beside_program_), "a request");
  EXPECT_EQ(taken(beside_program_), "");
  EXPECT_FALSE(handover_.has_given());
  EXPECT_FALSE(elsewhere_.has_place()) << "the processor is taken";
}

TEST_F(HandoverTest, KeepsARequestWithWhoReadItWhereTheOtherCannotHaveIt) {
  EXPECT_FALSE(gives_away(elsewhere_, "nobody knows of the program yet"));
  serve_until_seated(beside_program_);
  EXPECT_FALSE(gives_away(beside_program_, "its own"));
  EXPECT_FALSE(gives_away(elsewhere_, std::string(4096, 'x'))) << "too long";
  EXPECT_FALSE(handover_.gives_away(elsewhere_, 0, {})) << "of no program";

  handover_.close(beside_program_);
  EXPECT_FALSE(gives_away(elsewhere_, "the other has something long to do"));
  handover_.open(beside_program_);
  EXPECT_TRUE(gives_away(elsewhere_, "first"));
  EXPECT_FALSE(gives_away(elsewhere_, "second")) << "one at a time";
  EXPECT_EQ(taken(beside_program_), "first");
}

TEST_F(HandoverTest, LetsNobodyRestWhileARequestIsLeftAlone) {
  serve_until_seated(beside_program_);
  EXPECT_TRUE(gives_away(elsewhere_, "a request"));
  EXPECT_FALSE(handover_.leave(beside_program_));
  EXPECT_TRUE(beside_program_.has_place());
  handover_.close(beside_program_);  // a long request came in between
  EXPECT_EQ(taken_back(Handover::Age::kAny), "a request");
  EXPECT_EQ(taken_back(Handover::Age::kAny), "");
  EXPECT_EQ(taken(beside_program_), "");

  EXPECT_TRUE(handover_.leave(beside_program_));
  EXPECT_FALSE(beside_program_.has_place());
  serve_until_seated(elsewhere_);
}

TEST_F(HandoverTest, TakesBackWhatIsOverdue) {
  serve_until_seated(beside_program_);
  EXPECT_TRUE(gives_away(elsewhere_, "a request"));
  std::string found;
  while (found.empty()) found = taken_back(Handover::Age::kOverdue);
  EXPECT_EQ(found, "a request");
  EXPECT_FALSE(gives_away(elsewhere_, "another")) << "the program may have moved: it is looked for again";
}

TEST_F(HandoverTest, LosesAndDoublesNothingAmongThreads) {
  serve_until_seated(beside_program_);
  constexpr int kRequests = 100'000;
  std::atomic<int> served{0};
  std::atomic<std::int64_t> sum{0};
  const auto serve = [&](const void* request) {
    int number = 0;
    std::memcpy(&number, request, sizeof number);
    sum += number;
    ++served;
  };
  const auto come_for_more = [&](Handover::Seat& seat, std::span<std::byte> buffer) {
    while (served < kRequests) {
      if (handover_.take(seat, buffer) > 0) serve(buffer.data());
      if (handover_.take_back(buffer, Handover::Age::kOverdue) > 0) serve(buffer.data());
    }
  };
  std::thread beside([&] {
    std::array<std::byte, 4096> buffer;
    come_for_more(beside_program_, buffer);
  });
  for (int number = 0; number < kRequests; ++number)
    if (!handover_.gives_away(elsewhere_, program_, std::as_bytes(std::span(&number, 1)))) serve(&number);
  come_for_more(elsewhere_, bytes());
  beside.join();
  EXPECT_EQ(served, kRequests);
  EXPECT_EQ(sum, std::int64_t{kRequests} * (kRequests - 1) / 2);
}

}  // namespace
}  // namespace okcvm::fusefs

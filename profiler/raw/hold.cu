// Holds a stream back until the host lets it go, as NVIDIA/nvbench does, so that what is enqueued behind it runs without
// gaps. The host writes the number of the hold into memory that the device sees. A hold that waits longer than its time
// lets go by itself and says so: a queue that is full blocks the host, which would then never come to write the number.
extern "C" __global__ void hold(const volatile int* released, volatile int* timed_out, int number,
                                unsigned long long longest_ns)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    while (*released < number) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now - start > longest_ns) {
            *timed_out = number;
            return;
        }
    }
}

/* Waiting no longer than the deadline. */
#include "podwire.h"

#include <errno.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

int64_t deadline;

int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* The milliseconds until a time; none if it has passed. */
int until(int64_t end)
{
    int64_t left = end - now();
    return left > 0 ? (int)left : 0;
}

/* Wait for an event until a time: 0 if it came. Errors show when the file is used. */
int wait_for(int fd, short events, int64_t end)
{
    struct pollfd one = {.fd = fd, .events = events};
    int found;
    do
        found = poll(&one, 1, until(end));
    while (found < 0 && errno == EINTR);
    return found > 0 ? 0 : -1;
}

/* Write all of it before the deadline: 0, or -1 with errno. */
int write_all(int fd, const char *data, size_t size)
{
    while (size) {
        /* No more at once than a pipe that is ready takes without blocking (PIPE_BUF). */
        if (wait_for(fd, POLLOUT, deadline))
            return errno = ETIMEDOUT, -1;
        ssize_t written = write(fd, data, size < 4096 ? size : 4096);
        if (written < 0 && errno != EINTR && errno != EAGAIN)
            return -1;
        if (written > 0)
            data += written, size -= (size_t)written;
    }
    return 0;
}

// Sends N requests at once and prints how they were answered: node examples/burst.js URL [N] [METHOD]
const [url, count = '30', method = 'GET'] = process.argv.slice(2)
if (url === undefined) {
  process.stderr.write('usage: node examples/burst.js URL [N] [METHOD]\n')
  process.exit(2)
}

const startedAt = performance.now()
const counts = new Map()
async function send() {
  const response = await fetch(url, { method })
  await response.arrayBuffer()
  counts.set(response.status, (counts.get(response.status) ?? 0) + 1)
}
await Promise.all(Array.from({ length: Number(count) }, send))

for (const [status, times] of [...counts].sort()) process.stdout.write(`${status}: ${times}\n`)
process.stdout.write(`in ${((performance.now() - startedAt) / 1_000).toFixed(1)} s\n`)

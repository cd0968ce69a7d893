// H: 1100 clients whose own slow buckets bind, on instance 0; others saturated
import { simulate } from '/tmp/rv/rev/build/test/instances/simulator.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
for (const n of [0, 900, 1100]) {
  const stack=[limits(0.1,20,'client'),limits(200,40000,'everyone')]
  const src=[]
  for(let k=0;k<n;k++) src.push({instance:0,keys:['slow'+k,'all'],load:{kind:'saturated',depth:8}})
  // fast ones: many keys with own rate big is not possible in one stack; use many keys on instances 1..3
  for(let k=0;k<900;k++) for(const i of [1]) src.push({instance:i,keys:['n'+k,'all'],load:{kind:'saturated',depth:1}})
  const s=await simulate({stack,count:2,sources:src})
  await s.run(6000); const a=s.releases.length; await s.run(16000)
  const c=[0,0]; for(const r of s.releases.slice(a)) c[r.source.instance]++
  console.log({n,rate:(s.releases.length-a)/10,per:c, waiting:s.waiting})
}

// livelock of two leased buckets: same round trip for all, saturated from the start
import {simulate} from './build/test/instances/simulator.js'
const L=(name,r,c)=>({name,rate:r/1000,capacity:c})
for(const d of [2,10,20,40,60]) for(const depth of [4,8,20]){
 const sim=await simulate({stack:[L('client',140,280),L('all',200,400)],count:3,distance:()=>d,sources:[{instance:0,keys:['a','all'],load:{kind:'saturated',depth:60}},{instance:1,keys:['b','all'],load:{kind:'saturated',depth}},{instance:2,keys:['c','all'],load:{kind:'saturated',depth:20}}]})
 await sim.run(15000)
 const by=[0,1,2].map(i=>sim.releases.filter(r=>r.source.instance===i).map(r=>r.at))
 const gap=by.map(a=>Math.max(...[...a,15000].map((x,k)=>x-(k?a[k-1]:0))))
 console.log(`d ${d} depth ${depth}: releases by instance ${by.map(a=>a.length)} longest gap ${gap.map(g=>g.toFixed(0))} total ${sim.releases.length} of 3000`)
}
